// The stub's streams, events, copies and programs.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>

#include "../gpu/pattern.h"
#include "stub_cuda.h"
#include "support/content_hash.h"

using namespace stagehand::stub;
using stagehand::test::Answer;
using stagehand::test::Recording;
using Kind = stagehand::test::Recording::Kind;

namespace {

// Queues a command on the stream, or makes a capture record it. Nothing is allocated outside of captures, because tests
// count allocations.
template <class Replay>
CUresult queue(CUstream stream, Kind kind, const Replay& replay) {
    if (const CUresult result = entered(); result != CUDA_SUCCESS) return result;
    if (!stub().recorder.takes_part(host(stream))) return result_of(replay(*stub().host, stub().device, host(stream)));
    const Answer answer = stub().recorder.note(stub().device, host(stream), kind, replay);
    return answer == Answer::pass ? result_of(replay(*stub().host, stub().device, host(stream))) : result_of(answer);
}

// Makes the call, unless a capture takes or forbids it.
template <class Call>
CUresult unless(Answer answer, Call call) {
    return answer == Answer::pass ? result_of(call(*stub().host, stub().device)) : result_of(answer);
}

// The known programs: the backend's program, which keeps a stream busy for a number of nanoseconds, and the programs of
// the tests.
constexpr const char* kPrograms[] = {"sh_busy",
                                     "sh_test_write",
                                     "sh_test_check",
                                     "sh_content_hash",
                                     "sh_unpack_bf16",
                                     "sh_unpack_f16",
                                     "sh_unpack_f32",
                                     "sh_unpack_f8_e4m3",
                                     "sh_unpack_f8_e5m2",
                                     "sh_pack_bf16",
                                     "sh_pack_f16",
                                     "sh_pack_f32",
                                     "sh_pack_f8_e4m3",
                                     "sh_pack_f8_e5m2",
                                     "sh_unpack_tiles_bf16",
                                     "sh_unpack_tiles_f16",
                                     "sh_unpack_tiles_f32",
                                     "sh_unpack_tiles_f8_e4m3",
                                     "sh_unpack_tiles_f8_e5m2"};
// The last three are the first of five.
enum : uintptr_t { kBusy = 1, kWrite, kCheck, kHash, kUnpack, kPackTiles = kUnpack + 5, kUnpackTiles = kPackTiles + 5 };

struct Run {
    uintptr_t program;
    uint64_t address, words, contents, counter;
};

// `address` has the ranges, `words` is their number, and `contents` is where the digests go.
void hash(void* data) {
    const std::unique_ptr<const Run> run(static_cast<const Run*>(data));
    const auto* const ranges = reinterpret_cast<const sh_backend_range*>(run->address);
    auto* const digests = reinterpret_cast<sh_backend_digest*>(run->contents);
    for (uint64_t i = 0; i < run->words; i++)
        digests[i] =
            stagehand::support::content_hash(reinterpret_cast<const void*>(ranges[i].address), ranges[i].bytes);
}

void run(void* data) {
    const std::unique_ptr<const Run> run(static_cast<const Run*>(data));
    void* const at = reinterpret_cast<void*>(run->address);
    if (run->program == kWrite)
        stagehand::test::write_pattern(at, run->words, run->contents);
    else if (const uint64_t wrong = stagehand::test::count_wrong(at, run->words, run->contents))
        __atomic_fetch_add(reinterpret_cast<uint64_t*>(run->counter), wrong, __ATOMIC_RELAXED);
}

}  // namespace

STUB_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    if (flags & ~unsigned(CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
    return in_context([&](const sh_backend& backend, sh_backend_device* device) {
        sh_stream made = 0;
        const sh_status status = backend.stream_create(device, &made);
        *stream = reinterpret_cast<CUstream>(made);
        return status;
    });
}

STUB_EXPORT CUresult cuStreamDestroy(CUstream stream) {
    return in_context([&](const sh_backend& backend, sh_backend_device* device) {
        return backend.stream_destroy(device, host(stream));
    });
}

STUB_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    if (const CUresult result = entered_unsafe(); result != CUDA_SUCCESS) return result;
    return unless(stub().recorder.synchronize(host(stream)), [&](const sh_backend& backend, sh_backend_device* device) {
        return backend.stream_synchronize(device, host(stream));
    });
}

STUB_EXPORT CUresult cuCtxSynchronize() {
    return in_context_unsafe(
        [](const sh_backend& backend, sh_backend_device* device) { return backend.device_synchronize(device); });
}

STUB_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = entered(); result != CUDA_SUCCESS) return result;
    return unless(stub().recorder.wait(stub().device, host(stream), host(event)),
                  [&](const sh_backend& backend, sh_backend_device* device) {
                      return backend.stream_wait_event(device, host(stream), host(event));
                  });
}

STUB_EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void* data) {
    return queue(stream, Kind::launch, [=](const sh_backend& backend, sh_backend_device* device, sh_stream own) {
        return backend.stream_launch(device, own, fn, data, 0);
    });
}

STUB_EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags) {
    if (flags & ~unsigned(CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC)) return CUDA_ERROR_INVALID_VALUE;
    return in_context([&](const sh_backend& backend, sh_backend_device* device) {
        sh_backend_event made = 0;
        const sh_status status = backend.event_create(device, !(flags & CU_EVENT_DISABLE_TIMING), &made);
        *event = reinterpret_cast<CUevent>(made);
        return status;
    });
}

STUB_EXPORT CUresult cuEventDestroy(CUevent event) {
    stub().recorder.forget(host(event));
    return in_context([&](const sh_backend& backend, sh_backend_device* device) {
        return backend.event_destroy(device, host(event));
    });
}

STUB_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    if (const CUresult result = entered(); result != CUDA_SUCCESS) return result;
    return unless(stub().recorder.record(stub().device, host(stream), host(event)),
                  [&](const sh_backend& backend, sh_backend_device* device) {
                      return backend.event_record(device, host(event), host(stream));
                  });
}

STUB_EXPORT CUresult cuEventQuery(CUevent event) {
    if (const CUresult result = entered_unsafe(); result != CUDA_SUCCESS) return result;
    uint32_t done = 0;
    const CUresult result =
        unless(stub().recorder.ask(host(event)), [&](const sh_backend& backend, sh_backend_device* device) {
            return backend.event_query(device, host(event), &done);
        });
    return result == CUDA_SUCCESS && !done ? CUDA_ERROR_NOT_READY : result;
}

STUB_EXPORT CUresult cuEventSynchronize(CUevent event) {
    if (const CUresult result = entered_unsafe(); result != CUDA_SUCCESS) return result;
    return unless(stub().recorder.ask(host(event)), [&](const sh_backend& backend, sh_backend_device* device) {
        return backend.event_synchronize(device, host(event));
    });
}

STUB_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
    int64_t ns = 0;
    const CUresult result = in_context([&](const sh_backend& backend, sh_backend_device* device) {
        return backend.event_elapsed(device, host(begin), host(end), &ns);
    });
    *milliseconds = static_cast<float>(ns) / 1e6f;
    return result;
}

STUB_EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    return queue(stream, Kind::copy, [=](const sh_backend& backend, sh_backend_device* device, sh_stream own) {
        return backend.copy_to_device(device, own, to, from, bytes);
    });
}

STUB_EXPORT CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return queue(stream, Kind::copy, [=](const sh_backend& backend, sh_backend_device* device, sh_stream own) {
        return backend.copy_to_host(device, own, to, from, bytes);
    });
}

STUB_EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return queue(stream, Kind::copy, [=](const sh_backend& backend, sh_backend_device* device, sh_stream own) {
        return backend.copy_on_device(device, own, to, from, bytes);
    });
}

STUB_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes,
                                       CUstream stream) {
    return cuMemcpyDtoDAsync(to, from, bytes, stream);
}

STUB_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    return queue(stream, Kind::other, [=](const sh_backend& backend, sh_backend_device* device, sh_stream own) {
        return backend.fill(device, own, to, value, bytes);
    });
}

// Uses a stream of its own. A caller that needs the device's other work to finish has to wait for that work itself.
STUB_EXPORT CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
    return in_context_unsafe([&](const sh_backend& backend, sh_backend_device* device) {
        sh_stream stream = 0;
        if (const sh_status status = backend.stream_create(device, &stream); status < 0) return status;
        const sh_status queued = backend.copy_to_host(device, stream, to, from, bytes);
        const sh_status waited = backend.stream_synchronize(device, stream);
        backend.stream_destroy(device, stream);
        return queued < 0 ? queued : waited;
    });
}

STUB_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* program) {
    if (const CUresult result = entered(); result != CUDA_SUCCESS) return result;
    const char* const text = static_cast<const char*>(program);
    *module = reinterpret_cast<CUmodule>(&stub());
    const bool known = std::strstr(text, ".entry sh_busy(.param .u64 busy_ns)") ||
                       std::strstr(text, ".entry sh_content_hash(") || std::strstr(text, ".entry sh_unpack_bf16(") ||
                       std::strstr(text, ".entry sh_pack_bf16(") || std::strstr(text, ".entry sh_unpack_tiles_bf16(") ||
                       std::strcmp(text, stagehand::test::kPatternProgram) == 0;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

STUB_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
    const auto* const found = std::find_if(std::begin(kPrograms), std::end(kPrograms),
                                           [&](const char* known) { return std::strcmp(known, name) == 0; });
    if (found == std::end(kPrograms)) return CUDA_ERROR_NOT_FOUND;
    *function = reinterpret_cast<CUfunction>(found - kPrograms + 1);
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuModuleUnload(CUmodule) { return entered(); }

// The programs do the same with any number of threads.
STUB_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned, unsigned,
                                    unsigned, unsigned, CUstream stream, void** arguments, void**) {
    const auto program = reinterpret_cast<uintptr_t>(function);
    const auto argument = [&](size_t i) { return *static_cast<const uint64_t*>(arguments[i]); };
    if (program == kBusy) {
        return queue(stream, Kind::launch,
                     [busy_ns = static_cast<int64_t>(argument(0))](const sh_backend& backend, sh_backend_device* device,
                                                                   sh_stream own) {
                         return backend.stream_launch(device, own, nullptr, nullptr, busy_ns);
                     });
    }
    if (program >= kPackTiles) {
        const bool out = program < kUnpackTiles;
        sh_backend_tiles tiles = {};
        tiles.struct_size = sizeof tiles;
        tiles.format = static_cast<uint32_t>(program - (out ? kPackTiles : kUnpackTiles)) + SH_BACKEND_FORMAT_BF16;
        const size_t in_host = out ? 2 : 0;
        tiles.device = argument(out ? 0 : 3);
        tiles.host = reinterpret_cast<void*>(argument(in_host));
        tiles.headers = reinterpret_cast<void*>(argument(in_host + 1));
        tiles.elements = argument(out ? 1 : 2);
        return queue(stream, Kind::launch, [=](const sh_backend& backend, sh_backend_device* device, sh_stream own) {
            return out ? backend.pack_tiles(device, own, &tiles) : backend.unpack_tiles(device, own, &tiles);
        });
    }
    if (program >= kUnpack) {
        sh_backend_packed packed = {};
        packed.struct_size = sizeof packed;
        packed.format = static_cast<uint32_t>(program - kUnpack) + SH_BACKEND_FORMAT_BF16;
        packed.from = argument(0);
        packed.elements = argument(2);
        packed.to = argument(3);
        packed.failed = argument(4);
        packed.chunks =
            static_cast<uint32_t>((packed.elements + SH_BACKEND_CHUNK_ELEMENTS - 1) / SH_BACKEND_CHUNK_ELEMENTS);
        std::memcpy(packed.places, arguments[1], sizeof packed.places);
        return queue(stream, Kind::launch, [=](const sh_backend& backend, sh_backend_device* device, sh_stream own) {
            return backend.unpack(device, own, &packed);
        });
    }
    if (program == kHash) {
        return queue(stream, Kind::launch,
                     [made = Run{program, argument(0), blocks, argument(1), 0}](
                         const sh_backend& backend, sh_backend_device* device, sh_stream own) {
                         return backend.stream_launch(device, own, hash, new Run(made), 0);
                     });
    }
    const Run made = {program, argument(0), argument(1), argument(2), program == kCheck ? argument(3) : 0};
    return queue(stream, Kind::launch, [made](const sh_backend& backend, sh_backend_device* device, sh_stream own) {
        return backend.stream_launch(device, own, run, new Run(made), 0);
    });
}
