# Sallyport. Every command installs what it needs or says in one sentence what to install.
SHELL := /bin/bash
GO    ?= go
TOOL  := $(GO) tool -modfile=tools/go.mod
BIN   := bin
BUILD ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
SHIP  := CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X main.build=$(BUILD)"

.PHONY: all build guest generate lint test race fuzz demo bench acceptance chaos hostile conformance mutants clean prepare

all: build

build: guest ## build bin/sallyport and the guest's programs
	$(SHIP) -o $(BIN)/sallyport ./cmd/sallyport

guest: ## the guest's programs, for both architectures
	@mkdir -p $(BIN)/linux-amd64 $(BIN)/linux-arm64
	@for arch in amd64 arm64; do for p in sallyport-guest sallyport-bridge; do \
		GOOS=linux GOARCH=$$arch $(SHIP) -o $(BIN)/linux-$$arch/$$p ./cmd/$$p || exit 1; done; done

generate: ## generate code and reference pages
	cd api && $(GO) tool -modfile=../tools/go.mod buf generate
	$(GO) run ./cmd/sallyport reference --out docs/reference

lint: ## formatting, linters, zones, protobuf, staleness of generated files
	$(TOOL) golangci-lint run ./...
	cd api && $(GO) tool -modfile=../tools/go.mod buf lint
	@bash scripts/buf-breaking
	@bash scripts/generated-is-fresh
	$(GO) vet ./...
	$(GO) test ./test/house

prepare: ## what the tests need from the distribution
	@bash scripts/prepare

test: prepare guest ## everything: unit, property, integration and real harnesses, with the race detector
	@bash scripts/test

demo: ## the main job, on your machine, in under a minute after the build
	@bash scripts/demo

bench: build ## the rows of docs/evidence.md
	$(GO) run ./bench

acceptance: prepare ## every case with every real agent, as a table
	$(GO) run ./test/matrix

chaos: prepare guest ## every part stopped dead at every step: never twice
	$(GO) run ./test/chaos

hostile: prepare guest ## hostile guests, servers that answer wrongly, names that turn private: a row for each case
	$(GO) test -count=1 -v -timeout 30m ./test/hostile -all

conformance: prepare ## the official MCP suite
	$(GO) run ./test/conformance

mutants: ## a patch that breaks each invariant, and the test that turns red
	$(GO) run ./test/mutants

clean:
	rm -rf $(BIN) bench/out
