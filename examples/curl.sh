#!/bin/sh
# The endpoint from a shell. Usage: curl.sh [URL]
set -eu
url=${1:-http://127.0.0.1:8080/v1}

curl -fsS "$url/models"
echo
curl -fsS "$url/chat/completions" -d '{
  "messages": [{"role": "user", "content": "And it came to pass"}],
  "max_tokens": 16, "temperature": 0
}'
echo
curl -fsSN "$url/completions" -d '{"prompt": "The quick brown", "max_tokens": 8, "stream": true}'
