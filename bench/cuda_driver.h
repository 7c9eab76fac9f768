// The calls of CUDA's driver that `bench` itself makes, as an engine does: captures into graphs, copies, and the
// driver's own pinned memory. They are looked up at run time, so that CUDA is needed neither for building nor for
// linking.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <stagehand/stagehand.h>

#include "library.h"

namespace stagehand::cli::bench {

class CudaDriver {
public:
    // The driver for the device of this name. The device's context is current on the calling thread for the lifetime of
    // the result. Null if the device is not a CUDA device, or if the driver lacks a call; `reason` then says why.
    static std::unique_ptr<CudaDriver> open(const std::string& device_name, std::string* reason);
    ~CudaDriver();
    CudaDriver(const CudaDriver&) = delete;
    CudaDriver& operator=(const CudaDriver&) = delete;

    // Copies `times` times. The copies have ended when the call returns. Throws CommandError.
    void copy_to_device(std::uint64_t to, const void* from, std::uint64_t bytes, int times = 1) const;
    void copy_to_host(void* to, std::uint64_t from, std::uint64_t bytes, int times = 1) const;

    // Pinned memory as cudaHostAlloc() allocates it. The destructor frees it. Throws CommandError.
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

    // A graph of what `work` queues on the stream between sh_capture_begin() and sh_capture_end() of the runtime.
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

        // Launches the graph on the stream, between sh_graph_enter() and sh_graph_leave().
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
    // Throws CommandError if the result is not success.
    void check(int result, const char* call) const;

    std::unique_ptr<const Calls> calls_;
    int device_ = 0;
    bool retained_ = false;
};

// Copies between host memory and any address of a device, as an engine makes them. Uses CUDA's driver, or the processor
// if it can address the memory of the device. The calls copy `times` times, and return when the copies have ended.
class DeviceCopies {
public:
    // Null if neither is possible; `reason` then says why.
    static std::unique_ptr<DeviceCopies> open(sh_device* device, std::string* reason);

    void to_device(std::uint64_t to, const void* from, std::uint64_t bytes, int times = 1) const;
    void to_host(void* to, std::uint64_t from, std::uint64_t bytes, int times = 1) const;
    bool by_processor() const { return driver_ == nullptr; }

private:
    explicit DeviceCopies(std::unique_ptr<CudaDriver> driver) : driver_(std::move(driver)) {}

    std::unique_ptr<CudaDriver> driver_;
};

}  // namespace stagehand::cli::bench
