"""An app that knows nothing of Outrider: only its URL changes. Usage: openai_client.py [URL]"""

import sys

import openai

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"

with openai.OpenAI(base_url=URL, api_key="none") as client:
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "And it came to pass"}],
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        elif chunk.usage:
            print(f"\n{chunk.usage.completion_tokens} tokens of {model}")
