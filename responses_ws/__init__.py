"""The OpenAI Responses API as a reusable Django app."""
