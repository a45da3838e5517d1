// Things to try.

export const TOOLS = {
  none: [],
  weather: [
    {
      type: "function",
      name: "get_weather",
      description: "The weather in a city, now.",
      parameters: {
        type: "object",
        properties: { city: { type: "string" }, unit: { type: "string", enum: ["celsius", "fahrenheit"] } },
        required: ["city", "unit"],
        additionalProperties: false,
      },
      strict: true,
    },
  ],
  shell: [
    {
      type: "function",
      name: "run_command",
      description: "Run a command in the shell and return what it prints.",
      parameters: { type: "object", properties: { command: { type: "string" } }, required: ["command"], additionalProperties: false },
      strict: true,
    },
  ],
  search: [
    {
      type: "function",
      name: "search_orders",
      description: "Find orders of a customer.",
      parameters: {
        type: "object",
        properties: { customer: { type: "string" }, limit: { type: "integer" } },
        required: ["customer", "limit"],
        additionalProperties: false,
      },
      strict: true,
    },
    {
      type: "function",
      name: "refund_order",
      description: "Give the money for an order back.",
      parameters: { type: "object", properties: { order_id: { type: "string" }, reason: { type: "string" } }, required: ["order_id", "reason"], additionalProperties: false },
      strict: true,
    },
  ],
};

export const PROMPTS = [
  { words: "Say hello in one sentence.", tools: "none" },
  { words: "What is the weather in Paris?", tools: "weather" },
  { words: "Run `uname -sm` in the shell.", tools: "shell" },
];

// For the scripted engine, which is no model: it does what it is told.
export const SCRIPTED = [
  { words: "!tokens 200 !rate 60 A long answer, to stop or to steer", tools: "none" },
  { words: "!reason 40 !rate 60 Think before you answer.", tools: "none" },
  { words: "!calls 3 Compare the weather in Paris, Oslo and Rome.", tools: "weather" },
];

// What the page answers for a tool in the race: about as much as a file or a command's output.
export function toolResult(round, call) {
  const lines = Array.from({ length: 24 }, (_, line) => `${call.name} round ${round} line ${line + 1}: the quick brown fox jumps over the lazy dog, again`);
  return lines.join("\n");
}

export const RACE_TOOLS = [
  {
    type: "function",
    name: "read_file",
    description: "Read a file of the project.",
    parameters: { type: "object", properties: { path: { type: "string" } }, required: ["path"], additionalProperties: false },
    strict: true,
  },
];
