# Makefile - the one build file: plain GNU make, no configure step, not recursive
#
# Sources are found by folder, so a new file needs no line here. Everything that is built goes below $(B).
# `make help` lists the targets. V=1 shows whole commands; WERROR=1 makes warnings errors.

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

B ?= build
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
AR := $(if $(filter default,$(origin AR)),ar,$(AR))
MPICC ?= mpicc
PROTOC_C ?= protoc-c
PROTOC ?= protoc
PKG_CONFIG ?= pkg-config
CLANG ?= clang
FUZZ_SECONDS ?= 10
# The CUDA toolkit: CUDA_HOME, or where nvcc is. CUDA=0 leaves out what needs it.
NVCC ?= $(if $(CUDA_HOME),$(CUDA_HOME)/bin/nvcc,nvcc)

PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
DOCDIR ?= $(PREFIX)/share/doc/gradwire
COMPLETIONDIR ?= $(PREFIX)/share/bash-completion/completions
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d
PLUGINDIR ?= $(LIBDIR)/gradwire
DESTDIR ?=

# ---- version and libraries ------------------------------------------------------------------------

VERSION := $(shell awk '/define GW_VERSION_(MAJOR|MINOR|PATCH)/ { printf "%s%s", dot, $$3; dot = "." }' client/gradwire.h)
MAJOR := $(firstword $(subst ., ,$(VERSION)))

# One call each, only when something is to be compiled.
PACKAGES := libuv libprotobuf-c libsodium inih libcjson ucx
NO_BUILD := help clean dist format uninstall
ifneq ($(filter-out $(NO_BUILD),$(or $(MAKECMDGOALS),all)),)
PACKAGE_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(PACKAGES) 2>/dev/null || echo missing)
ifneq ($(filter missing,$(PACKAGE_CFLAGS)),)
$(error libraries are missing: run `scripts/setup build`, or see `$(PKG_CONFIG) --print-errors --exists $(PACKAGES)`)
endif
HAVE := $(shell $(PKG_CONFIG) --exists openblas zlib && echo demo; $(PKG_CONFIG) --exists libpng && echo png; \
	command -v $(MPICC) >/dev/null && echo mpi; command -v $(PROTOC) >/dev/null && echo protoc)
ifneq ($(CUDA),0)
ifndef CUDA_HOME
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC))))
endif
HAVE += $(if $(wildcard $(CUDA_HOME)/include/cuda.h),cuda)
endif
endif

CLIENT_LIBS := -lprotobuf-c -lpthread
CTL_LIBS := -lprotobuf-c -lcjson -lpthread
DAEMON_LIBS := -luv -lprotobuf-c -lsodium -linih -lcjson -lucp -lucs -lucm -lpthread -lm
# The driver's library is there only where a driver is; its stub says what it will hold.
CUDA_LIBS := -L$(CUDA_HOME)/lib64/stubs -lcuda

# ---- flags ----------------------------------------------------------------------------------------

WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes $(if $(WERROR),-Werror)

# SAN is set by the targets asan, ubsan, tsan, fuzz and coverage, each in a build folder of its own.
SAN ?=
ifeq ($(SAN),)
CFLAGS ?= -O2 -g -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
LDFLAGS ?= -Wl,-z,relro,-z,now
NO_UNDEFINED := -Wl,--no-undefined
else ifeq ($(SAN),coverage)
CFLAGS = -O0 -g --coverage -fprofile-update=atomic
LDFLAGS = --coverage
else
CFLAGS = -O1 -g -fno-omit-frame-pointer -fsanitize=$(SAN) -fno-sanitize-recover=all
LDFLAGS = -fsanitize=$(SAN)
endif

BASE_CFLAGS := -std=c11 -D_GNU_SOURCE -fPIC -fvisibility=hidden -ffp-contract=off -pthread $(PACKAGE_CFLAGS)
PUBLIC := -I$(B)/include
SHARED := $(PUBLIC) -I$(B)/gen -Iproto
CUDA_INCLUDE := -isystem $(CUDA_HOME)/include

# Everything is built again when the compiler or a flag changes.
FLAGS_FILE := $(B)/.flags
FLAGS_NOW := $(strip $(CC) $(BASE_CFLAGS) $(CFLAGS) $(WARNINGS) $(LDFLAGS) $(MPICC) $(HAVE) $(CUDA_HOME) $(PLUGINDIR))
ifneq ($(filter-out $(NO_BUILD),$(or $(MAKECMDGOALS),all)),)
ifneq ($(FLAGS_NOW),$(strip $(file <$(FLAGS_FILE))))
$(shell mkdir -p $(B))
$(file >$(FLAGS_FILE),$(FLAGS_NOW))
endif
endif

ifdef V
Q :=
say := @:
else
Q := @
say = @printf '  %-8s %s\n'
endif

# ---- sources --------------------------------------------------------------------------------------

objects = $(patsubst %.c,$(B)/obj/%.o,$(1))
programs = $(patsubst %.c,$(B)/%,$(1))

GEN := $(B)/gen/gradwire.pb-c.c $(B)/gen/gradwire.pb-c.h
HEADERS := $(B)/include/gradwire.h $(B)/include/gradwire/status.def
GEN_OBJ := $(B)/obj/gen/gradwire.pb-c.o

PROTO_OBJ := $(call objects,$(wildcard proto/*.c)) $(GEN_OBJ)
KERNEL_OBJ := $(call objects,$(wildcard kernels/*.c kernels/host/*.c))
CODEC_OBJ := $(call objects,$(wildcard codec/*.c codec/simd/*.c))
CLIENT_OBJ := $(call objects,$(wildcard client/*.c))
CTL_OBJ := $(call objects,$(filter-out client/ctl/main.c,$(wildcard client/ctl/*.c)))
CTL_MAIN := $(call objects,$(wildcard client/ctl/main.c))
DAEMON_OBJ := $(call objects,$(filter-out daemon/main.c,$(wildcard daemon/*.c)))
DAEMON_MAIN := $(call objects,$(wildcard daemon/main.c))
TEST_LIB_OBJ := $(call objects,$(wildcard tests/lib/*.c))
DAEMON_CUDA_OBJ := $(call objects,$(wildcard daemon/cuda/*.c))
CLIENT_CUDA_OBJ := $(call objects,$(wildcard client/cuda/*.c))
CTL_CUDA_OBJ := $(call objects,$(wildcard client/ctl/cuda/*.c))
FAKE_CUDA_OBJ := $(call objects,$(wildcard tests/fake_cuda/*.c))
RECORDER_OBJ := $(call objects,$(wildcard tests/profiler/*.c))

# These use the driver API themselves, and run with the simulated driver or the real one.
CUDA_TEST_SRC := $(wildcard tests/component/test_fake_cuda*.c tests/gpu/*.c)
TEST_SRC := $(filter-out $(CUDA_TEST_SRC),$(wildcard tests/unit/*.c tests/component/*.c tests/integration/*.c))
# These have kernels, and run on a GPU only.
KERNEL_SRC := $(wildcard tests/gpu/*.cu bench/*.cu examples/*.cu)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZERS := $(patsubst tests/fuzz/%.c,run-%,$(FUZZ_SRC))
FUZZ_LIB_OBJ := $(call objects,$(filter-out $(FUZZ_SRC),$(wildcard tests/fuzz/*.c)))
MPI_SRC := $(wildcard examples/mpi_*.c bench/mpi_*.c)
EXAMPLE_SRC := $(filter-out $(MPI_SRC),$(wildcard examples/*.c))
# This one has kernels, and shares images, network and charts with the one beside it.
GPU_DEMO_DIR := examples/fashion_mnist_gpu
GPU_DEMO_KERNEL_OBJ := $(patsubst %.cu,$(B)/obj/%.o,$(wildcard $(GPU_DEMO_DIR)/*.cu))
GPU_DEMO_OBJ := $(GPU_DEMO_KERNEL_OBJ) $(call objects,$(wildcard $(GPU_DEMO_DIR)/*.c) \
	$(addprefix examples/fashion_mnist/,chart.c dataset.c network.c processes.c))
EXAMPLE_DIRS := $(filter-out $(GPU_DEMO_DIR),$(patsubst %/,%,$(sort $(dir $(wildcard examples/*/*.c)))))
BENCH_SRC := $(filter-out $(MPI_SRC),$(wildcard bench/*.c))

LIBPROTO := $(B)/libgwproto.a
LIBKERNELS := $(B)/libgwkernels.a
LIBCODEC := $(B)/libgwcodec.a
LIBDAEMON := $(B)/libgwd.a
LIBCTL := $(B)/libgwctl.a
LIBTEST := $(B)/libgwtest.a
LIBSTATIC := $(B)/libgradwire.a
SONAME := libgradwire.so.$(MAJOR)
LIBSHARED := $(B)/libgradwire.so.$(VERSION)
LINKS := $(B)/$(SONAME) $(B)/libgradwire.so

PLUGINS := $(if $(filter cuda,$(HAVE)),$(if $(DAEMON_CUDA_OBJ),$(B)/gradwire/gradwired-cuda.so) \
	$(if $(CLIENT_CUDA_OBJ),$(B)/gradwire/libgradwire-cuda.so) $(if $(CTL_CUDA_OBJ),$(B)/gradwire/gwctl-cuda.so))
FAKE_CUDA := $(if $(filter cuda,$(HAVE)),$(if $(FAKE_CUDA_OBJ),$(B)/tests/fake/libcuda.so.1))
RECORDER := $(if $(filter cuda,$(HAVE)),$(if $(wildcard $(CUDA_HOME)/include/nvtx3/nvToolsExt.h),$(B)/tests/profiler/recorder.so))
CUDA_TESTS := $(if $(filter cuda,$(HAVE)),$(call programs,$(CUDA_TEST_SRC)))
# Sanitizers do not know kernels.
KERNEL_PROGRAMS := $(if $(filter cuda,$(HAVE)),$(if $(SAN),,$(patsubst %.cu,$(B)/%,$(KERNEL_SRC))))
GWCTL := $(if $(CTL_MAIN),$(B)/gwctl)
GRADWIRED := $(if $(DAEMON_MAIN),$(B)/gradwired)
LIBRARIES := $(if $(CLIENT_OBJ),$(LIBSTATIC) $(LIBSHARED) $(LINKS))
UNITS := $(patsubst systemd/%.in,$(B)/systemd/%,$(wildcard systemd/*.in))
TEST_PROGRAMS := $(call programs,$(TEST_SRC))
FUZZ_PROGRAMS := $(call programs,$(FUZZ_SRC))
# MPI libraries leak and race by design, so they are left out of sanitized builds.
MPI_PROGRAMS := $(if $(and $(filter mpi,$(HAVE)),$(if $(SAN),,yes)),$(call programs,$(MPI_SRC)))
DEMO_PROGRAMS := $(if $(filter demo,$(HAVE)),$(addprefix $(B)/,$(EXAMPLE_DIRS)))
GPU_DEMO := $(if $(and $(filter cuda,$(HAVE)),$(filter demo,$(HAVE))),$(if $(SAN),,$(B)/$(GPU_DEMO_DIR)))
EXAMPLES := $(call programs,$(EXAMPLE_SRC)) $(DEMO_PROGRAMS) $(GPU_DEMO) $(filter $(B)/examples/%,$(MPI_PROGRAMS))
BENCHES := $(call programs,$(BENCH_SRC)) $(filter $(B)/bench/%,$(MPI_PROGRAMS))
PYTHON_GEN := $(if $(filter protoc,$(HAVE)),$(B)/gen/gradwire_pb2.py)

# ---- targets --------------------------------------------------------------------------------------

.PHONY: all programs tests test test-gpu bench-host bench-gpu bench-nodes bench-accuracy bench-ddp bench-ddp-codecs bench-vit bundle install uninstall asan ubsan tsan fuzz fuzz-build fuzz-programs $(FUZZERS) coverage lint \
	format dist clean help

all: programs tests ## build everything that runs here
programs: $(GRADWIRED) $(GWCTL) $(LIBRARIES) $(PLUGINS) $(UNITS) $(B)/gradwire.pc $(EXAMPLES) $(BENCHES) \
	$(filter-out $(B)/tests/%,$(KERNEL_PROGRAMS)) ## build without tests
tests: $(TEST_PROGRAMS) $(FAKE_CUDA) $(RECORDER) $(CUDA_TESTS) $(filter $(B)/tests/%,$(KERNEL_PROGRAMS)) \
	$(PYTHON_GEN) ## build the test programs

test: all ## run all tests but the fuzzers; TESTS='unit/* simulated-driver/*' for a part
	$(Q)BUILD=$(abspath $(B)) tests/run $(TESTS)

test-gpu: all ## run the tests of GPUs, on the GPUs of this host
	$(Q)BUILD=$(abspath $(B)) tests/run --gpu

bench-nodes: programs ## benchmark daemons in network namespaces beside Open MPI and Gloo, as root; writes $(B)/bench/nodes.json
	$(Q)BUILD=$(abspath $(B)) bench/run-nodes

bench-accuracy: programs ## train with each codec on two nodes, with 10 seeds; writes $(B)/bench/accuracy.json
	$(Q)BUILD=$(abspath $(B)) bench/run-accuracy

bench-ddp: programs ## benchmark steps of DDP on the CPU beside Gloo; writes $(B)/bench/ddp.json
	$(Q)BUILD=$(abspath $(B)) bench/run-ddp

bench-ddp-codecs: programs ## train with DDP and each codec on two nodes; writes $(B)/bench/ddp-codecs.json
	$(Q)BUILD=$(abspath $(B)) bench/run-ddp-codecs

bench-host: programs ## benchmark this host's engine beside its peers; writes $(B)/bench/host.json
	$(Q)BUILD=$(abspath $(B)) bench/run-host

bench-gpu: programs ## benchmark GPU buckets beside NCCL in the trainers; writes $(B)/bench/gpu.json
	$(Q)BUILD=$(abspath $(B)) bench/run-gpu

bench-vit: programs ## train ViT-L/32 with PyTorch's DDP in all its ways and with gradwire; writes $(B)/bench/vit.json
	$(Q)BUILD=$(abspath $(B)) bench/vit.py

help: ## print this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

# ---- code that is generated -----------------------------------------------------------------------

$(B)/gen/gradwire.pb-c.c $(B)/gen/gradwire.pb-c.h &: proto/gradwire.proto
	$(say) PROTOC-C $<
	@mkdir -p $(B)/gen
	$(Q)$(PROTOC_C) --c_out=$(B)/gen -Iproto $<

$(B)/gen/gradwire_pb2.py: proto/gradwire.proto
	$(say) PROTOC $<
	@mkdir -p $(B)/gen
	$(Q)$(PROTOC) --python_out=$(B)/gen -Iproto $<

$(B)/include/gradwire.h: client/gradwire.h
$(B)/include/gradwire/status.def: proto/status.def
$(HEADERS):
	@mkdir -p $(@D)
	$(Q)cp $< $@

$(B)/systemd/%: systemd/%.in $(FLAGS_FILE)
	$(say) GEN $@
	@mkdir -p $(@D)
	$(Q)sed 's|@BINDIR@|$(BINDIR)|g' $< >$@

$(B)/gradwire.pc: client/gradwire.pc.in $(HEADERS) $(FLAGS_FILE)
	$(say) GEN $@
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|' \
		$< >$@

# ---- objects --------------------------------------------------------------------------------------

# Each part sees the headers it may depend on, and no others.
$(PROTO_OBJ): PART := $(SHARED)
$(KERNEL_OBJ): PART := $(PUBLIC) -Ikernels $(if $(SAN),,-O3)
# What AddressSanitizer of gcc 12 has for a stack is aligned too little for wide vectors (gcc bug 110027).
$(CODEC_OBJ): PART := $(PUBLIC) -Icodec $(if $(SAN),$(if $(findstring clang,$(CC)),,--param asan-use-after-return=0),-O3)
$(CLIENT_OBJ): PART := $(SHARED) -Iclient
$(CTL_OBJ) $(CTL_MAIN): PART := $(SHARED) -Iclient/ctl
$(DAEMON_OBJ) $(DAEMON_MAIN): PART := $(SHARED) -Ikernels -Icodec -Idaemon
$(B)/obj/tests/%.o: PART := $(SHARED) -I. -Ikernels -Icodec -Idaemon -Iclient -Itests/lib
$(B)/obj/bench/%.o: PART := $(SHARED) -Ikernels -Icodec -Ibench
$(B)/obj/bench/wire.o $(B)/obj/bench/cipher.o: PART := $(SHARED) -Ibench -Idaemon
$(B)/obj/examples/%.o: PART := $(PUBLIC)
$(B)/obj/$(GPU_DEMO_DIR)/%.o: PART := $(PUBLIC) $(CUDA_INCLUDE)
$(DAEMON_CUDA_OBJ): PART := $(SHARED) -Idaemon $(CUDA_INCLUDE)
$(CLIENT_CUDA_OBJ): PART := $(SHARED) -Iclient $(CUDA_INCLUDE)
$(CTL_CUDA_OBJ): PART := $(SHARED) -Iclient/ctl $(CUDA_INCLUDE)
$(FAKE_CUDA_OBJ) $(RECORDER_OBJ): PART := $(CUDA_INCLUDE)
$(call objects,$(CUDA_TEST_SRC)): PART := $(SHARED) -I. -Iclient -Itests/lib $(CUDA_INCLUDE)
$(call objects,proto/plugin.c): PART += -DGW_PLUGIN_DIR='"$(PLUGINDIR)"'

$(B)/obj/%.o: %.c $(FLAGS_FILE) | $(GEN) $(HEADERS)
	$(say) CC $<
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE_CFLAGS) $(WARNINGS) $(CFLAGS) $(PART) $(CPPFLAGS) -MMD -MP -c -o $@ $<

$(call objects,$(MPI_SRC)): $(B)/obj/%.o: %.c $(FLAGS_FILE) | $(GEN) $(HEADERS)
	$(say) MPICC $<
	@mkdir -p $(@D)
	$(Q)OMPI_CC=$(CC) $(MPICC) $(BASE_CFLAGS) $(WARNINGS) $(CFLAGS) $(PART) $(CPPFLAGS) -MMD -MP -c -o $@ $<

# protoc-c's output is not ours to keep free of warnings.
$(GEN_OBJ): $(B)/gen/gradwire.pb-c.c $(B)/gen/gradwire.pb-c.h $(FLAGS_FILE)
	$(say) CC $<
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE_CFLAGS) $(CFLAGS) $(PART) $(CPPFLAGS) -w -c -o $@ $<

-include $(shell test -d $(B)/obj && find $(B)/obj -name '*.d')

# ---- libraries and programs -----------------------------------------------------------------------

$(LIBPROTO): $(PROTO_OBJ)
$(LIBKERNELS): $(KERNEL_OBJ)
$(LIBCODEC): $(CODEC_OBJ)
$(LIBDAEMON): $(DAEMON_OBJ)
$(LIBCTL): $(CTL_OBJ)
$(LIBTEST): $(TEST_LIB_OBJ)
$(LIBSTATIC): $(CLIENT_OBJ) $(PROTO_OBJ)
$(LIBPROTO) $(LIBKERNELS) $(LIBCODEC) $(LIBDAEMON) $(LIBCTL) $(LIBTEST) $(LIBSTATIC):
	$(say) AR $@
	@rm -f $@
	$(Q)$(AR) qcs $@ $^

$(LIBSHARED): $(CLIENT_OBJ) $(PROTO_OBJ) client/gradwire.map
	$(say) LD $@
	$(Q)$(CC) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=client/gradwire.map $(NO_UNDEFINED) $(LDFLAGS) \
		-o $@ $(filter %.o,$^) $(CLIENT_LIBS)

$(B)/$(SONAME): $(LIBSHARED)
	$(Q)ln -sf $(<F) $@
$(B)/libgradwire.so: $(B)/$(SONAME)
	$(Q)ln -sf $(<F) $@

# A plugin calls nobody's functions but the driver's; who loads it calls the table that it holds.
define link_plugin
$(say) LD $@
@mkdir -p $(@D)
$(Q)$(CC) -shared -pthread $(NO_UNDEFINED) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LIBS)
endef
$(B)/gradwire/%.so: LIBS = $(CUDA_LIBS)
$(B)/gradwire/gradwired-cuda.so: $(DAEMON_CUDA_OBJ)
$(B)/gradwire/libgradwire-cuda.so: $(CLIENT_CUDA_OBJ)
$(B)/gradwire/gwctl-cuda.so: $(CTL_CUDA_OBJ)
$(PLUGINS):
	$(link_plugin)

# The simulated driver, under the real one's name.
$(FAKE_CUDA): LIBS = -Wl,-soname,libcuda.so.1 -Wl,-z,nodelete
$(FAKE_CUDA): $(FAKE_CUDA_OBJ)
	$(link_plugin)

# A profiler for tests, where the toolkit has NVTX.
$(RECORDER): $(RECORDER_OBJ)
	$(link_plugin)

define link
$(say) LD $@
@mkdir -p $(@D)
$(Q)$(CC) -pthread $(LDFLAGS) -o $@ $(filter %.o %.a,$^) $(LIBS)
endef

$(B)/gwctl: $(CTL_MAIN) $(LIBCTL) $(LIBSTATIC)
$(B)/gwctl: LIBS := $(CTL_LIBS)
$(B)/gradwired: $(DAEMON_MAIN) $(LIBDAEMON) $(LIBPROTO) $(LIBKERNELS) $(LIBCODEC)
$(B)/gradwired: LIBS := $(DAEMON_LIBS)
$(B)/gwctl $(B)/gradwired:
	$(link)

# Tests and benchmarks may look inside, so they link everything statically.
$(TEST_PROGRAMS): LIBS := -lcunit $(DAEMON_LIBS)
$(TEST_PROGRAMS): $(B)/%: $(B)/obj/%.o $(LIBTEST) $(LIBDAEMON) $(LIBCTL) $(LIBSTATIC) $(LIBKERNELS) $(LIBCODEC)
	$(link)

$(CUDA_TESTS): LIBS = -lcunit $(DAEMON_LIBS) $(CUDA_LIBS)
$(CUDA_TESTS): $(B)/%: $(B)/obj/%.o $(LIBTEST) $(LIBSTATIC) $(LIBKERNELS) | $(FAKE_CUDA)
	$(link)

# Code for the GPUs of today, and an intermediate form for those of tomorrow.
NVCC_FLAGS := -O3 -std=c++17 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]
$(KERNEL_PROGRAMS): $(B)/%: %.cu $(LIBSTATIC) $(LIBKERNELS) $(FLAGS_FILE) $(wildcard bench/*.h bench/*.cuh tests/lib/*.h)
	$(say) NVCC $<
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_FLAGS) $(SHARED) -Ibench -Itests/lib -Xcompiler -Wall,-Wextra -o $@ $< $(LIBSTATIC) $(LIBKERNELS) \
		-lprotobuf-c $(CUDA_LIBS) -lpthread

$(FUZZ_PROGRAMS): LIBS := -fsanitize=fuzzer $(DAEMON_LIBS)
$(FUZZ_PROGRAMS): $(B)/%: $(B)/obj/%.o $(FUZZ_LIB_OBJ) $(LIBDAEMON) $(LIBSTATIC) $(LIBKERNELS) $(LIBCODEC)
	$(link)

$(call programs,$(BENCH_SRC)): LIBS := $(CLIENT_LIBS) -lm
$(call programs,$(BENCH_SRC)): $(B)/%: $(B)/obj/%.o $(LIBSTATIC) $(LIBKERNELS) $(LIBCODEC)
	$(link)

# These measure parts of the daemon.
$(B)/bench/wire $(B)/bench/cipher: LIBS := $(DAEMON_LIBS)
$(B)/bench/wire $(B)/bench/cipher: $(LIBDAEMON) $(LIBPROTO)

# Examples are what a user would write: public header, shared library.
AS_USER = -L$(B) -Wl,-rpath,'$$ORIGIN/..' -lgradwire
$(call programs,$(EXAMPLE_SRC)): LIBS = $(AS_USER) -lm
$(call programs,$(EXAMPLE_SRC)): $(B)/%: $(B)/obj/%.o $(LIBSHARED) $(LINKS)
	$(link)

.SECONDEXPANSION:
$(addprefix $(B)/,$(EXAMPLE_DIRS)): LIBS = $(AS_USER) -lopenblas $(if $(filter png,$(HAVE)),-lpng) -lz -lm
$(addprefix $(B)/,$(EXAMPLE_DIRS)): $(B)/%: $$(call objects,$$(wildcard $$*/*.c)) $(LIBSHARED) $(LINKS)
	$(link)

$(GPU_DEMO_KERNEL_OBJ): $(B)/obj/%.o: %.cu $(FLAGS_FILE) | $(HEADERS)
	$(say) NVCC $<
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_FLAGS) $(PART) -Xcompiler -Wall,-Wextra -MMD -MP -c -o $@ $<
$(GPU_DEMO): LIBS = $(AS_USER) -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublas -lcudart_static -lstdc++ \
	-lz -lm -ldl -lrt
$(GPU_DEMO): $(GPU_DEMO_OBJ) $(LIBSHARED) $(LINKS)
	$(link)

$(call programs,$(MPI_SRC)): $(B)/%: $(B)/obj/%.o $(LIBSHARED) $(LINKS)
	$(say) MPILD $@
	@mkdir -p $(@D)
	$(Q)OMPI_CC=$(CC) $(MPICC) -pthread $(LDFLAGS) -o $@ $< $(AS_USER) -lm

# ---- sanitizers, fuzzing, coverage ----------------------------------------------------------------

, := ,
# Reports go to files, so that one from a process whose exit status nobody reads is not lost.
define sanitized
@rm -f $(B)/$(1)/report.*
$(Q)$(MAKE) --no-print-directory B=$(B)/$(1) SAN=$(2) all
$(Q)log=$(abspath $(B)/$(1)/report); rc=0; \
ASAN_OPTIONS=log_path=$$log:detect_stack_use_after_return=1 UBSAN_OPTIONS=log_path=$$log:print_stacktrace=1 \
	TSAN_OPTIONS=log_path=$$log:second_deadlock_stack=1 $(3) \
	$(MAKE) --no-print-directory B=$(B)/$(1) SAN=$(2) test || rc=1; \
for report in $$log.*; do [ -e "$$report" ] || continue; echo "$$report:"; head -n 60 "$$report"; rc=1; done; exit $$rc
endef

asan: ## run all tests with AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer
	$(call sanitized,asan,address$(,)undefined)
ubsan: ## run all tests with UndefinedBehaviorSanitizer alone
	$(call sanitized,ubsan,undefined)
# Address space randomisation of newer kernels is too wide for older ThreadSanitizers. UCX's hooks, which the daemon turns off
# and programs of tests do not, take locks in threads that ThreadSanitizer has let go already.
tsan: ## run all tests with ThreadSanitizer
	$(call sanitized,tsan,thread,env UCX_MEM_MMAP_HOOK_MODE=none setarch -R)

fuzz: $(FUZZERS) ## run each fuzzer for FUZZ_SECONDS (10); with -j2 two at once
fuzz-build:
	$(Q)$(MAKE) --no-print-directory B=$(B)/fuzz CC=$(CLANG) SAN=fuzzer-no-link,address,undefined fuzz-programs
$(FUZZERS): run-%: fuzz-build
	$(Q)seeds=; [ ! -d tests/fuzz/corpus/$* ] || seeds=tests/fuzz/corpus/$*; \
		mkdir -p $(B)/fuzz/corpus/$*; echo "$*: $(FUZZ_SECONDS) s"; \
		$(B)/fuzz/tests/fuzz/$* -max_total_time=$(FUZZ_SECONDS) -timeout=10 -verbosity=0 -print_final_stats=1 \
			-artifact_prefix=$(B)/fuzz/$*- $(B)/fuzz/corpus/$* $$seeds
fuzz-programs: $(FUZZ_PROGRAMS)

coverage: ## run all tests and write $(B)/coverage/index.html
	$(Q)$(MAKE) --no-print-directory B=$(B)/coverage SAN=coverage all
	$(Q)find $(B)/coverage -name '*.gcda' -delete
	$(Q)$(MAKE) --no-print-directory B=$(B)/coverage SAN=coverage test
	$(Q)gcovr --root . --filter '(proto|kernels|codec|client|daemon)/' --object-directory $(B)/coverage \
		--html-details $(B)/coverage/index.html --print-summary

# ---- installation ---------------------------------------------------------------------------------

# One row for each file that is installed: mode:folder:source:name (no name: as the source).
rows = $(foreach file,$(3),$(1):$(2):$(file):)
man_rows = $(foreach file,$(wildcard docs/man/*.[1-8]),644:$(MANDIR)/man$(subst .,,$(suffix $(file))):$(file):)
INSTALLED = $(call rows,755,$(BINDIR),$(GRADWIRED) $(GWCTL)) \
	$(if $(CLIENT_OBJ),644:$(LIBDIR):$(LIBSHARED): 644:$(LIBDIR):$(LIBSTATIC):) \
	$(call rows,644,$(PLUGINDIR),$(PLUGINS)) \
	644:$(INCLUDEDIR):client/gradwire.h: 644:$(INCLUDEDIR)/gradwire:proto/status.def: \
	644:$(LIBDIR)/pkgconfig:$(B)/gradwire.pc: \
	$(call rows,644,$(UNITDIR),$(UNITS) $(wildcard systemd/*.socket)) \
	$(call rows,644,$(SYSUSERSDIR),$(wildcard systemd/sysusers.d/*.conf)) \
	$(call rows,644,$(TMPFILESDIR),$(wildcard systemd/tmpfiles.d/*.conf)) \
	$(foreach file,$(wildcard etc/gwctl.bash-completion),644:$(COMPLETIONDIR):$(file):gwctl) \
	$(call rows,644,$(DOCDIR),$(wildcard LICENSE proto/PROTOCOL.md etc/gradwired.conf.example)) \
	$(man_rows)

# Splits $$row into $$mode, $$from and $$to.
split_row = mode=$${row%%:*}; row=$${row\#*:}; folder=$${row%%:*}; row=$${row\#*:}; from=$${row%%:*}; name=$${row\#*:}; \
	to="$(DESTDIR)$$folder/$${name:-$${from\#\#*/}}"

install: programs ## install; honours DESTDIR, PREFIX (/usr/local), LIBDIR, UNITDIR and the like
	$(Q)for row in $(INSTALLED); do $(split_row); install -D -m $$mode "$$from" "$$to" || exit 1; done
	$(Q)ln -sf $(notdir $(LIBSHARED)) $(DESTDIR)$(LIBDIR)/$(SONAME)
	$(Q)ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libgradwire.so
	@$(if $(DESTDIR),:,printf '%s\n' 'Installed. To run it as a service of this host, as root:' \
		'  ldconfig && systemd-sysusers $(SYSUSERSDIR)/gradwire.conf &&' \
		'  systemd-tmpfiles --create $(TMPFILESDIR)/gradwire.conf && systemctl daemon-reload &&' \
		'  systemctl enable --now gradwired.socket gradwired-admin.socket' \
		'and for the user of each trainer, who then logs in again:' \
		'  usermod -aG gradwire USER')

uninstall: ## remove what install put there
	$(Q)for row in $(INSTALLED); do $(split_row); rm -f "$$to" || exit 1; done
	$(Q)rm -f $(DESTDIR)$(LIBDIR)/$(SONAME) $(DESTDIR)$(LIBDIR)/libgradwire.so
	$(Q)for folder in $(INCLUDEDIR)/gradwire $(PLUGINDIR) $(DOCDIR); do \
		[ ! -d $(DESTDIR)$$folder ] || rmdir --ignore-fail-on-non-empty $(DESTDIR)$$folder; done

# ---- upkeep ---------------------------------------------------------------------------------------

lint: $(HEADERS) ## check format, sizes, exported names, scripts and units
	$(Q)B=$(B) scripts/lint

format: ## format the sources in place (clang-format 14)
	$(Q)scripts/lint --format

dist: ## write $(B)/gradwire-VERSION.tar.gz from the last commit
	@mkdir -p $(B)
	$(Q)git archive --prefix=gradwire-$(VERSION)/ -o $(B)/gradwire-$(VERSION).tar.gz HEAD
	@echo $(B)/gradwire-$(VERSION).tar.gz

# What needs large libraries of a distribution is left out: the demo without GPUs, MPI.
BUNDLED = $(GRADWIRED) $(GWCTL) $(LIBSHARED) $(LINKS) $(PLUGINS) $(call programs,$(BENCH_SRC) $(EXAMPLE_SRC)) $(TEST_PROGRAMS) \
	$(FAKE_CUDA) $(RECORDER) $(CUDA_TESTS) $(GPU_DEMO) $(KERNEL_PROGRAMS) $(PYTHON_GEN)
bundle: $(BUNDLED) $(HEADERS) ## write $(B)/bundle: a build folder to carry to a machine without compiler and network
	$(Q)scripts/bundle $(B) $(patsubst $(B)/%,%,$(BUNDLED))

clean: ## remove $(B)
	$(Q)rm -rf $(B)
