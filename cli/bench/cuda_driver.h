// The calls of CUDA's driver that `bench` makes by itself, as an engine would: captures into graphs, and the driver's own pinned memory. They
// are looked up at run time; nothing of CUDA's is linked, or needed to build.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <stagehand/stagehand.h>

#include "library.h"

namespace stagehand::cli::bench {

class CudaDriver {
public:
    // The driver of a device of this name, whose context is current on the calling thread for as long as this
    // lives. Null where the device is none of CUDA's, or the driver lacks a call: then `reason` says why.
    static std::unique_ptr<CudaDriver> open(const std::string& device_name, std::string* reason);
    ~CudaDriver();
    CudaDriver(const CudaDriver&) = delete;
    CudaDriver& operator=(const CudaDriver&) = delete;

    // Memory as cudaHostAlloc() gives it; freed when it goes. Throws CommandError.
    class Pinned {
    public:
        Pinned(const CudaDriver& driver, std::uint64_t bytes);
        ~Pinned();
        Pinned(const Pinned&) = delete;
        Pinned& operator=(const Pinned&) = delete;

    private:
        const CudaDriver& driver_;
        void* memory_ = nullptr;
    };

    // What `work` queues on the stream, between sh_capture_begin() and sh_capture_end() of the runtime.
    class Step {
    public:
        template <typename Work>
        Step(const CudaDriver& driver, sh_runtime* runtime, sh_stream stream, Work work)
            : driver_(driver), runtime_(runtime), stream_(stream) {
            begin();
            try {
                work();
            } catch (...) {
                give_up();
                throw;
            }
            end();
        }
        ~Step();
        Step(const Step&) = delete;
        Step& operator=(const Step&) = delete;

        // Launches it on the stream, entered and left.
        void launch() const;

    private:
        void begin();
        void end();
        void give_up();

        const CudaDriver& driver_;
        sh_runtime* const runtime_;
        const sh_stream stream_;
        sh_graph* graph_ = nullptr;
        void* instance_ = nullptr;
    };

private:
    struct Calls;
    CudaDriver() = default;
    // Throws CommandError if the result is none of success.
    void check(int result, const char* call) const;

    std::unique_ptr<const Calls> calls_;
    int device_ = 0;
    bool retained_ = false;
};

}  // namespace stagehand::cli::bench
