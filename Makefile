# Every target finds or builds the toolchain first; see scripts/toolchain.sh.

PORT ?= 8080
SETS ?=
OTP ?= $(ERLMCP_OTP)
env = export ERLMCP_OTP='$(OTP)' && . scripts/env.sh

.PHONY: help run build test test-cluster check conformance interop benchmark-quick bench-peers \
        bench-cluster mutants shell clean

help:
	@echo 'make run          serve the everything example and its console on port $(PORT) (PORT=)'
	@echo 'make test         all test suites, the official peers, a cluster that is harmed'
	@echo 'make test OTP=27  the suites of the library, with the oldest OTP that it supports'
	@echo 'make test-cluster  a cluster that is harmed under load (3 minutes; LONG=1: half an hour)'
	@echo 'make check        warnings, xref, dialyzer, layers, line width, coverage of the last test'
	@echo 'make build        compile'
	@echo 'make conformance  the official suite, of servers and of clients (SETS=NAME: a part)'
	@echo 'make interop      the official clients and servers only'
	@echo 'make benchmark-quick  every benchmark, short; results in bench/results (2 minutes)'
	@echo 'make bench-peers  next to the SDKs of other languages, for docs/performance.md (30 minutes)'
	@echo 'make bench-cluster  what a cluster costs, with 1 to 8 nodes (7 minutes)'
	@echo 'make mutants      faults in the code that no test sees (MINUTES=30, ONLY=server/gate)'
	@echo 'make shell        an Erlang shell with everything loaded'
	@echo 'make clean        remove what was built; the toolchain in the cache folder stays'

run: build
	@exec bin/erlmcp serve everything --port $(PORT) --console

build:
	@$(env) && exec scripts/build.sh

test:
	@$(env) && exec scripts/test.sh

# LONG and PLAN reach the script as they are.
test-cluster:
	@$(env) && exec scripts/test_cluster.sh

check:
	@$(env) && exec scripts/check.sh

conformance: build
	@$(env) && exec scripts/conformance_all.sh $(SETS)

interop: build
	@$(env) && exec scripts/interop.sh

benchmark-quick: build
	@$(env) && exec scripts/bench/run_all_benchmarks.sh quick

bench-peers: build
	@exec bench/peers.sh

bench-cluster:
	@$(env) && exec bench/cluster.sh

# MINUTES, ONLY and the other variables reach the script as they are.
mutants:
	@$(env) && exec scripts/mutants.sh

shell:
	@$(env) && exec rebar3 shell

clean:
	@rm -rf _build
