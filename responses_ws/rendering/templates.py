"""Chat templates of our own, for models whose own one will not do."""

# ChatML with tools in the Hermes form.
_FORM = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' }}
    {{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments ' }}
    {{- 'within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' }}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- else %}
    {{- DEFAULT }}
{%- endif %}
BEFORE{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        REASONING{{- message.content or '' }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and message.content) or not loop.first %}{{- '\\n' }}{%- endif %}
            {%- set function = tool_call.function or tool_call %}
            {{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
            {{- function.arguments if function.arguments is string else function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif not loop.first or message.role != 'system' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# For small models whose template drops tools. llama.cpp renders it too, and recognises the <tool_call> form when it
# parses what the model says.
HERMES = (
    _FORM.replace(
        "DEFAULT",
        "'<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n'",
    )
    .replace("BEFORE", "")
    .replace("REASONING", "")
)

# For models that reason: what they thought stays until the user speaks again, as most families have it.
THINK_HERMES = (
    _FORM.replace("DEFAULT", "''")
    .replace(
        "BEFORE",
        """\
{%- set asked = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set asked.last = loop.index0 %}{%- endif %}
{%- endfor %}
""",
    )
    .replace(
        "REASONING",
        """\
{%- if message.reasoning_content and loop.index0 > asked.last %}
            {{- '<think>' + message.reasoning_content + '</think>' }}
        {%- endif %}
        """,
    )
)

TEMPLATES = {"hermes": HERMES, "think-hermes": THINK_HERMES}
"""By the name that a model's settings give."""
