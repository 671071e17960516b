# make            list the targets
# JOBS=n          compile n files at once and run 2n tests at once (default: the cores)
# TORCH=2.15.0    another pinned LibTorch, with its own build folders
# TESSERA_TORCH=  a folder with an existing LibTorch
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

JOBS ?= $(shell nproc)
TORCH ?= 2.11.0
export JOBS TORCH
ifneq ($(shell grep -cxE '[1-9][0-9]*' <<<'$(JOBS)'),1)
  $(error JOBS: got '$(JOBS)', expected a whole number from 1)
endif
suffix := $(if $(filter-out 2.11.0,$(TORCH)),-$(TORCH))
release := build/release$(suffix)

# $(call build,preset,targets): configures and builds.
build = torch=$$(cmake/bootstrap.sh path); \
  cmake --preset $(1) -B build/$(1)$(suffix) -DTESSERA_TORCH="$$torch" >build/$(1)$(suffix).log 2>&1 \
    || { cat build/$(1)$(suffix).log; exit 1; }; \
  cmake --build build/$(1)$(suffix) -j $(JOBS) $(if $(2),--target $(2))

# $(call check,preset,ctest arguments): runs tests; .ci/run prints the log's summary again. Ranks
# wait for each other and for timeouts, so it takes two programs per core to keep the cores busy.
check = ctest --test-dir build/$(1)$(suffix) -j $$((2 * $(JOBS))) --output-on-failure --no-tests=error \
  --output-log build/$(1)$(suffix)/ctest.log $(2)

.PHONY: help bootstrap build install test test-release test-everything sanitize test-all core-asan core-tsan \
  all-asan all-tsan injected-faults durations demo prove reproduce package docs tidy format clean
.NOTPARALLEL:  # the builds run one after another; each uses all JOBS

help:
	@echo 'make demo        train the GPT example under zero3 and compare the memory of all strategies'
	@echo 'make prove       check the claims of README from outside, against LibTorch alone'
	@echo 'make reproduce   make the figures and numbers of README from raw results (RUN=<folder>)'
	@echo 'make test        build the library, programs and tests; run what each change must pass'
	@echo 'make sanitize    the tests of core under the sanitizers (asan and ubsan, tsan)'
	@echo 'make test-all    also what make test leaves out, all test programs under the sanitizers,'
	@echo '                 the newest LibTorch, and faults that are put into the library and must be noticed'
	@echo 'make build       build all (build/release)'
	@echo 'make durations   where the seconds of the last build and its tests went'
	@echo 'make install     what programs need, and no more (PREFIX=<folder>)'
	@echo 'make package     a .tar.gz and, on Debian and Ubuntu, a .deb (build/release/packages)'
	@echo 'make docs        README, docs/ and the API as a site (build/docs/html); checks its links'
	@echo 'make tidy        clang-tidy on the files changed since BASE (default: origin, else HEAD~1;'
	@echo '                 BASE=all: on every file)'
	@echo 'make format      clang-format on all files'
	@echo 'make clean       remove build/'
	@echo 'Each fetches what it needs (cmake/bootstrap.sh). JOBS=n, TORCH=2.15.0, TESSERA_TORCH=<dir>.'

bootstrap:
	@mkdir -p build
	@cmake/bootstrap.sh

build: bootstrap
	@$(call build,release,all everything)

test-release: bootstrap
	@$(call build,release)
	@$(call check,release)

test: test-release

# The tests of each change, the tests that it leaves out, and all rows where it takes only some.
test-everything: build
	@TESSERA_TEST_ALL=1 $(call check,release,-C All)

# Only core: it has the threads and the raw memory. Its tests are one program, which leaves the
# second core idle, so both kinds run at once.
sanitize: bootstrap
	@$(call build,asan,core_test)
	@$(call build,tsan,core_test)
	@$(call check,asan,-L '^core$$') & asan=$$!; tsan=0; $(call check,tsan,-L '^core$$') || tsan=$$?; \
	  wait $$asan && exit $$tsan

core-asan core-tsan: core-%: bootstrap
	@$(call build,$*,core_test)
	@$(call check,$*,-L '^core$$')

# Leaves out examples and benchmarks: they run the code of the test programs, one rank per process.
all-asan all-tsan: all-%: bootstrap
	@$(call build,$*,all everything)
	@$(call check,$*,-C All -LE 'install|tree|examples|bench|prove|chaos')

# Faults are put into a copy of the tree. Its build folder has the same relative path as here, so
# the compiler cache is used for files that have been compiled here.
injected := build/injected$(suffix)
injected-faults: bootstrap
	@rm -rf $(injected) && mkdir -p $(injected)
	@git ls-files -z | xargs -0 cp --parents -t $(injected)
	@torch=$$(cmake/bootstrap.sh path); cd $(injected); \
	  cmake --preset release -DTESSERA_TORCH="$$torch" >/dev/null
	@tests/injected_faults.py $(injected) $(injected)/build/release

test-all: test-everything all-asan all-tsan injected-faults
	@$(MAKE) --no-print-directory test-release TORCH=2.15.0

durations:
	@tests/durations.py $(release)

# The first program trains while the others are compiled, by ninja itself, because cmake --build does
# not pass a signal on to it.
demo: bootstrap
	@echo 'demo: building the library and a first program: 2 to 4 minutes on 2 cores'
	@$(call build,release,quickstart tessera-run)
	@ninja -C $(release) -j $(JOBS) gpt memory_compare >$(release)/demo.log 2>&1 & rest=$$!; \
	  examples/demo.sh --first $(release)/bin || { kill $$rest 2>/dev/null; exit 1; }; \
	  echo; echo 'demo: building a GPT and the comparison of memory: 1 to 2 minutes on 2 cores'; \
	  tail -n +1 -f --pid=$$rest $(release)/demo.log; wait $$rest
	@echo
	@examples/demo.sh $(release)/bin

prove: bootstrap
	@$(call build,release,prove_reference prove_training tessera-run)
	@python3 -B tests/prove/prove.py $(release)/bin

reproduce: bootstrap
	@$(call build,release,memory_compare tessera-run)
	@python3 -B -m bench.runner.reproduce --programs $(release)/bin $(if $(RUN),--run $(RUN))

install: bootstrap
	@[[ -n "$(PREFIX)" ]] || { echo 'PREFIX: got nothing; say make install PREFIX=<folder>'; exit 64; }
	@$(call build,release,tessera_installed)
	@cmake --install $(release) --prefix "$(PREFIX)"

package: bootstrap
	@$(call build,release,tessera_installed)
	@cd $(release) && cpack

docs:
	@cmake/bootstrap.sh docs
	@docs/site/build.sh

BASE ?= $(shell git rev-parse -q --verify origin/HEAD || git rev-parse -q --verify HEAD~1)
tidy:
	@mkdir -p build
	@cmake/bootstrap.sh lint
	@cmake/tidy.sh build/tidy$(suffix) $(BASE)

format:
	@git ls-files '*.h' '*.cc' | xargs -r clang-format-14 -i

clean:
	rm -rf build
