# Everything goes through the project's own virtual environment, made at first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := $(shell find rust python -name '*.rs' -o -name '*.py' -o -name '*.pyi' -o -name 'names.txt') Cargo.toml Cargo.lock rust/core/Cargo.toml rust/py/Cargo.toml pyproject.toml

export CARGO_TERM_COLOR ?= auto

.DEFAULT_GOAL := help
FUZZ_SECONDS ?= 60
.PHONY: help dev train test test-all test-rust test-torch lint fuzz bench wheel exhaustive clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(BIN)/maturin: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip "maturin>=1.9,<2"
	@touch $@

# The extras are installed with the package, so that the list lives in pyproject.toml alone.
$(VENV)/.installed: $(BIN)/maturin $(SOURCES)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --extras cli,test,lint
	@touch $@

dev: $(VENV)/.installed ## build the package into .venv, with its extras

train: $(VENV)/.installed ## train the names network on the embedded corpus
	$(BIN)/tritter-accel train

test-rust:
	cargo test --workspace --quiet

test: $(VENV)/.installed test-rust ## Rust tests, then pytest
	$(BIN)/python -m pytest -q

test-torch: $(VENV)/.installed ## the tests that need torch or jax, which make test skips
	$(BIN)/pip install --quiet torch jax
	$(BIN)/python -m pytest -q tests/contract/test_array_rules.py

test-all: test test-torch ## both

exhaustive: $(VENV)/.installed ## tests over all 2^32 floats
	cargo test --release -p tritter-core --quiet -- --ignored
	$(BIN)/python -m pytest -q -m exhaustive

lint: $(VENV)/.installed ## rustfmt, clippy, ruff, mypy, stubtest
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	$(BIN)/ruff check python tests benchmarks scripts
	$(BIN)/ruff format --check python tests benchmarks scripts
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest tritter_accel --ignore-disjoint-bases

$(BIN)/cargo-fuzz:
	cargo install --quiet --locked --root $(VENV) cargo-fuzz

# Without a sanitizer a stable compiler will do, and what parses messages has no unsafe code.
fuzz: $(BIN)/cargo-fuzz ## mutated messages against the parser, for FUZZ_SECONDS (needs a C++ compiler)
	mkdir -p fuzz/corpus/message
	$(BIN)/cargo-fuzz run --sanitizer none message fuzz/corpus/message tests/data/wire tests/data/hostile -- \
		-max_total_time=$(FUZZ_SECONDS) -max_len=65536

bench: $(VENV)/.installed ## ratios against peers, in docs/benchmarks.md
	$(BIN)/pip install --quiet "scikit-learn>=1.5" "threadpoolctl>=3" torch jax fht-cpu
	$(BIN)/python -m benchmarks

wheel: $(BIN)/maturin ## an abi3 wheel in dist/
	$(BIN)/maturin build --release --out dist

clean: ## remove what the targets above made
	rm -rf $(VENV) target fuzz/target fuzz/corpus dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find python -name '*.so' -delete
