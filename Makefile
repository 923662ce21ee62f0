# Every target is one or two plain commands; README lists them for machines without make.
.DEFAULT_GOAL := help
.PHONY: help setup repro experiment test test-slow test-gpu test-services test-method check format serve stop status backup restore flow night ui publish promote rollback models reproduce predict serve-model export-onnx report partition-report bench bench-parts dag clean

RUN := . ./env.sh &&
UI_PORT ?= 5000
# MLflow's pages open on its tools for language models; this is where trainings and models are.
UI = http://127.0.0.1:$(UI_PORT)/\#/experiments?workflowType=machine_learning
PORT ?= 5001
REGISTRY = $(if $(EXPERIMENT),--experiment "$(EXPERIMENT)") $(if $(KIND),--kind "$(KIND)")

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## create .venv, install, prepare the tracking database (quick when nothing changed)
	@sh setup.sh

repro: setup ## run the whole pipeline; only what a change touches is run again
	@$(RUN) dvc repro
	@$(RUN) python -m tasks.compare --print
	@echo "report       reports/index.html (opens offline)"
	@echo "every run    runs/<method>-<seed>/"
	@echo "tracking     make ui, then $(UI)"

experiment: setup ## run a comparison of the papers in a copy: make experiment NAME=dbe_fashion_mnist
	@sh experiments/run.sh "$(NAME)"

test: setup ## run the tests (no network, no GPU needed)
	@$(RUN) python -m pytest -q -n auto $(ARGS)

test-slow: setup ## run the tests that `make test` leaves out because they take long
	@$(RUN) python -m pytest -q -m slow $(ARGS)

test-gpu: setup ## run the tests that need a GPU
	@$(RUN) python -m pytest -q -m gpu $(ARGS)

test-services: setup ## run the tests that need PostgreSQL; installs the extra services-test
	@$(RUN) { [ "$${INSTALL:-yes}" = no ] || python -m pip install -q -c constraints.txt -e '.[services-test]'; }
	@$(RUN) python -m pytest -q -m services $(ARGS)

test-method: setup ## run every test of one method or add-on: make test-method NAME=fedprox
	@test -n "$(NAME)" || { echo "error: which one? make test-method NAME=fedprox" >&2; exit 1; }
	@$(RUN) python -m pytest -q tests -k "$(NAME)" $(ARGS)

check: setup ## lint, format check, types
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy

format: setup ## sort imports, format, fix what ruff can fix
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .

serve: setup ## start the Prefect server, a worker and the deployments (Ctrl-C or `make stop` ends them)
	@$(RUN) python -m flows.serve

stop: ## stop what `make serve` started
	@$(RUN) python -m flows.serve --stop

status: ## what runs, on which port, the last runs and the next
	@$(RUN) python -m flows.status

backup: setup ## copy databases, models and the DVC cache, while all runs: make backup TO=/media/disk/fedcore
	@test -n "$(TO)" || { echo "error: where to? make backup TO=/media/disk/fedcore" >&2; exit 1; }
	@$(RUN) python -m tasks.backup --to "$(TO)"

restore: ## bring a backup back: make restore FROM=/media/disk/fedcore (the newest), or FROM=.../20260131-020000
	@test -n "$(FROM)" || { echo "error: from where? make restore FROM=/media/disk/fedcore" >&2; exit 1; }
	@$(RUN) python -m tasks.restore --from "$(FROM)"

flow: setup ## run the pipeline as a flow on the server of `make serve`
	@$(RUN) prefect deployment run 'experiment/default' --watch

night: setup ## play six nights in fast-forward, in a copy: new data, bad data, a crash, a kill
	@$(RUN) python experiments/night.py $(ARGS)

ui: setup ## open the MLflow pages on http://127.0.0.1:5000
	@echo "trainings and models: $(UI)"
	@$(RUN) MLFLOW_BACKEND_STORE_URI="$$MLFLOW_TRACKING_URI" mlflow ui --host 127.0.0.1 --port $(UI_PORT)

publish: setup ## recreate tracking runs that are missing, from runs/
	@$(RUN) python -m tasks.publish

promote: setup ## take the challengers through the gate: make promote [KIND=global] [FORCE=yes REASON="why"]
	@$(RUN) python -m tasks.promotion promote $(REGISTRY) $(if $(VERSION),--version "$(VERSION)") $(if $(FORCE),--force) \
		--reason "$(REASON)"

rollback: ## undo the latest promotion: make rollback [KIND=personal] [REASON="why"]
	@$(RUN) python -m tasks.promotion rollback $(REGISTRY) --reason "$(REASON)"

models: setup ## list the registered versions: aliases, who, when, why
	@$(RUN) python -m tasks.promotion models $(REGISTRY)

reproduce: setup ## rebuild a version in a clean clone and compare: make reproduce VERSION=digits-global/1
	@$(RUN) python -m tasks.reproduce "$(VERSION)"

predict: setup ## classify a table: make predict INPUT=rows.csv OUTPUT=predictions.csv [MODEL=name@alias] [VERSION=3]
	@test -n "$(INPUT)" && test -n "$(OUTPUT)" || { echo "error: which table? make predict INPUT=rows.csv OUTPUT=predictions.csv" >&2; exit 1; }
	@$(RUN) python -m tasks.predict "$(INPUT)" "$(OUTPUT)" --model "$(MODEL)" --version "$(VERSION)" $(ARGS)

serve-model: setup ## answer HTTP requests: make serve-model [KIND=global] [MODEL=name@alias] [VERSION=3] [PORT=5001]
	@$(RUN) python -m tasks.serve_model --kind "$(KIND)" --model "$(MODEL)" --version "$(VERSION)" --port $(PORT)

export-onnx: setup ## write a model as ONNX: make export-onnx OUTPUT=model.onnx [KIND=personal CLIENT=3] [VERSION=3]
	@test -n "$(OUTPUT)" || { echo "error: where to? make export-onnx OUTPUT=model.onnx" >&2; exit 1; }
	@$(RUN) python -m tasks.export_onnx "$(OUTPUT)" --client "$(CLIENT)" --kind "$(KIND)" --model "$(MODEL)" --version "$(VERSION)"

report: setup ## bring the report up to date (and what it needs)
	@$(RUN) dvc repro report

partition-report: setup ## compare partitions: make partition-report ARGS="experiments/a.yaml --partition '{alpha: 1.0}'"
	@$(RUN) python -m tasks.partition_report $(ARGS)

dag: setup ## print the pipeline as a Mermaid graph
	@$(RUN) dvc dag --mermaid

bench: setup ## time rounds against the reference loop: make bench ARGS="--workloads w2 --rounds 5"
	@$(RUN) python -m benchmarks.compare $(ARGS)

bench-parts: setup ## time the engine's parts one by one
	@$(RUN) python -m pytest benchmarks/parts -q $(ARGS)

clean: ## remove caches of tools; data, runs, reports and tracking stay
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis dvc_plots build *.egg-info
	@find fedcore tasks flows tests -name __pycache__ -type d -prune -exec rm -rf {} +
