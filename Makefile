# Every command of the project. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

TOOLS   := $(CURDIR)/.tools
BUF     := tools/buf/node_modules/.bin/buf
GRPCJS  := internal/push/lean/testdata/grpcjs/node_modules/@grpc/grpc-js/package.json
DEV     := $(CURDIR)/.dev
MODULES := . sdk/go sdk/go/policyotel examples/migrate
GO      := go
export CGO_ENABLED ?= 0

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: build
build: ## build the programs into bin/
	mkdir -p bin && $(GO) build -o bin/ ./cmd/...

.PHONY: run
run: build ## start policyd with embedded etcd and a demo fleet; Ctrl-C stops both
	@mkdir -p $(DEV)
	@exec bin/policyd dev --demo --data-dir $(DEV)

# The race detector needs cgo.
.PHONY: test
test: $(GRPCJS) ccore ## all tests, with the race detector
	@for m in $(MODULES); do (cd $$m && CGO_ENABLED=1 $(GO) test -race -timeout 20m ./...); done

# The lean transport is tried with a client on gRPC's C core, which comes with the system's Python.
.PHONY: ccore
ccore: ## install gRPC's C core for Python, where that is Debian and allowed
	@/usr/bin/python3 -c 'import grpc' 2>/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-grpcio >/dev/null; } || \
		echo "python3-grpcio is not there and cannot be installed: interop with gRPC's C core will be skipped"

.PHONY: check
check: check-gen check-format check-lint check-arch check-rules check-mod ## everything a change must pass beside the tests

.PHONY: gen
gen: $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc $(BUF) ## generate code from proto/
	cd proto && ../$(BUF) lint && ../$(BUF) generate

.PHONY: check-gen
check-gen: gen ## generated code is up to date
	git diff --exit-code -- sdk/go/gen

.PHONY: check-format
check-format: $(TOOLS)/gofumpt
	@out=$$(git ls-files '*.go' | grep -v '^sdk/go/gen/' | xargs $(TOOLS)/gofumpt -l); test -z "$$out" || { echo "not formatted (make fix-format):"; echo "$$out"; exit 1; }

.PHONY: fix-format
fix-format: $(TOOLS)/gofumpt ## format the code
	git ls-files '*.go' | grep -v '^sdk/go/gen/' | xargs $(TOOLS)/gofumpt -w

.PHONY: check-lint
check-lint: $(TOOLS)/golangci-lint ## golangci-lint in every module
	@for m in $(MODULES); do (cd $$m && $(TOOLS)/golangci-lint run ./...); done

.PHONY: check-arch
check-arch: $(TOOLS)/go-arch-lint ## import rules
	$(TOOLS)/go-arch-lint check --project-path .

.PHONY: check-rules
check-rules: ## house rules that no linter knows
	cd tools && $(GO) run ./rules ..

.PHONY: check-mod
check-mod: ## module files are tidy; what the SDK pulls in is what sdk/go/deps.txt says
	@for m in $(MODULES); do (cd $$m && $(GO) mod tidy -diff); done
	@cd sdk/go && $(GO) list -deps -f '{{with .Module}}{{.Path}}{{end}}' . | sort -u | diff - deps.txt

.PHONY: fix-mod
fix-mod: ## tidy the module files
	@for m in $(MODULES); do (cd $$m && $(GO) mod tidy); done
	@cd sdk/go && $(GO) list -deps -f '{{with .Module}}{{.Path}}{{end}}' . | sort -u > deps.txt

.PHONY: bench
bench: ## measure against peers, print tables
	cd bench && $(GO) run ./hotpath && $(GO) run ./fanout -n $(or $(N),1000)

.PHONY: fuzz
fuzz: ## run every fuzzer for FUZZTIME (default 20s)
	@for m in $(MODULES); do (cd tools && $(GO) run ./fuzzall -time $(or $(FUZZTIME),20s) ../$$m); done

.PHONY: chaos
chaos: ## break etcd, policyd and the links to SDKs for DURATION (default 10m) and EDITS; SEED repeats a schedule, TRANSPORT is grpc or lean, RACE=1
	$(GO) test -count=1 -v -timeout 24h ./e2e/chaos -run TestChaos -chaos.duration=$(or $(DURATION),10m) -chaos.edits=$(or $(EDITS),0) \
		-chaos.seed=$(or $(SEED),0) -chaos.transport=$(TRANSPORT) -chaos.race=$(if $(RACE),true,false)

.PHONY: clean
clean: ## remove what was built and the data of make run
	rm -rf bin $(DEV)

# Tools are built from tools/go.mod, once.
$(TOOLS)/protoc-gen-go: tools/go.mod
	cd tools && $(GO) build -o $@ google.golang.org/protobuf/cmd/protoc-gen-go
$(TOOLS)/protoc-gen-go-grpc: tools/go.mod
	cd tools && $(GO) build -o $@ google.golang.org/grpc/cmd/protoc-gen-go-grpc
$(TOOLS)/gofumpt: tools/go.mod
	cd tools && $(GO) build -o $@ mvdan.cc/gofumpt
$(TOOLS)/go-arch-lint: tools/go.mod
	cd tools && $(GO) build -o $@ github.com/fe3dback/go-arch-lint
$(TOOLS)/golangci-lint: tools/go.mod
	cd tools && $(GO) build -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(BUF): tools/buf/package-lock.json
	cd tools/buf && npm ci --no-audit --no-fund && touch -c node_modules/.bin/buf
# The other client of gRPC that the lean transport is tried with.
$(GRPCJS): internal/push/lean/testdata/grpcjs/package-lock.json
	cd internal/push/lean/testdata/grpcjs && npm ci --no-audit --no-fund --ignore-scripts && touch -c node_modules/@grpc/grpc-js/package.json
