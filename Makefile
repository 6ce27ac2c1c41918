# Two commands: `make train` and `make test`. Each sets up, builds and runs; `make help` lists the rest.
#
#   TORCH=...   another LibTorch: a libtorch folder, a site-packages/torch folder, or a python that imports torch
#   BUILD=...   the build folder (default: build/release)
#   ARGS=...    arguments passed on: make train ARGS="--epochs 3"
#   IMAGE_PROGRAMS=...  programs of yours that make image takes along

BUILD ?= build/release
TORCH ?=
ARGS  ?=
DEPS  := .deps
export TORCH

.PHONY: help train test test-long bench lint format install image packages docs clean setup-train setup-test setup-lint build

help:
	@echo "make train       set up, build, and train the digits example on every device of this machine"
	@echo "make test        set up, build, and run every test that needs less than half an hour in all"
	@echo "make test-long   also sanitizers, stress, the second LibTorch, clang, lint, and make train and make test on bare systems"
	@echo "make bench       the benchmarks, with the peers beside them"
	@echo "make lint        spelling, the pages' style, clang-format and clang-tidy over everything, with tools of fixed versions"
	@echo "make format      rewrite the sources in the house format"
	@echo "make install     build with -O2, and install under PREFIX (default /usr/local), with docs, examples, and LibTorch from .deps/"
	@echo "make image       an OCI image of what make install makes, for containers, in build/image/"
	@echo "make packages    two Debian packages, a Python wheel and a source tarball, in build/packages/"
	@echo "make docs        the documentation as a site, with the API reference, in build/docs/"

setup-train:
	@scripts/setup.sh train

setup-test:
	@scripts/setup.sh test

setup-lint:
	@scripts/setup.sh lint

build:
	@scripts/build.sh $(BUILD)

train: setup-train
	@scripts/build.sh $(BUILD) muster_train
	@$(BUILD)/bin/muster run $(BUILD)/bin/train $(ARGS)

test: setup-test build
	@scripts/test.sh $(BUILD)

test-long: setup-test
	@scripts/test_long.sh

bench: setup-test
	@scripts/build.sh $(BUILD) all benchmarks
	@scripts/setup.sh bench
	@scripts/bench.sh $(BUILD)

lint: setup-lint
	@scripts/lint.sh $(ARGS)

format: setup-lint
	@git ls-files '*.h' '*.cc' | xargs .deps/lint/bin/clang-format -i

PREFIX ?= /usr/local
install: setup-train
	@scripts/build.sh build/install muster_installed
	@sudo=; mkdir -p $(DESTDIR)$(PREFIX) 2>/dev/null; [ -w $(DESTDIR)$(PREFIX) ] || sudo="sudo env DESTDIR=$(DESTDIR)"; \
	  $$sudo cmake --install build/install --prefix $(PREFIX) >build/install/install.log || { cat build/install/install.log; exit 1; }; \
	  [ -z "$$sudo" ] || sudo rm -f build/install/install_manifest*.txt
	@echo "install: into $(PREFIX) (build/install/install.log lists the files)"

image: setup-train
	@scripts/setup.sh image
	@scripts/build.sh build/install muster_installed
	@sudo=; [ "$$(id -u)" = 0 ] || sudo="sudo -E"; $$sudo scripts/image.sh $(ARGS)

docs:
	@scripts/setup.sh docs
	@scripts/docs.sh

packages:
	@scripts/setup.sh packages
	@scripts/packages.sh

clean:
	rm -rf build
