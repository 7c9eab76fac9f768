// Programs that write and compare contents of device memory in a stream. They run on the device, or on the host if the
// host reaches the memory.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "gpu_test.h"
#include "pattern.h"

namespace stagehand::test {

class DevicePrograms {
public:
    virtual ~DevicePrograms() = default;
    // A thread other than the creator's calls this first.
    virtual void enter_thread() {}
    // Queue one program. The addresses are device addresses. The number of wrong words is added to counter `counter`.
    virtual void write(sh_stream stream, uint64_t address, uint64_t words, uint64_t contents) = 0;
    virtual void check(sh_stream stream, uint64_t address, uint64_t words, uint64_t contents, size_t counter) = 0;
    // Waits for the streams and returns all counters.
    virtual std::vector<uint64_t> wrong_words() = 0;
};

class HostPrograms : public DevicePrograms {
public:
    HostPrograms(sh_device* device, size_t counters) : device_(device), wrong_(counters) {}
    void write(sh_stream stream, uint64_t address, uint64_t words, uint64_t contents) override {
        queue(stream, {address, words, contents, nullptr});
    }
    void check(sh_stream stream, uint64_t address, uint64_t words, uint64_t contents, size_t counter) override {
        queue(stream, {address, words, contents, &wrong_[counter]});
    }
    std::vector<uint64_t> wrong_words() override { return {wrong_.begin(), wrong_.end()}; }

private:
    struct Job {
        uint64_t address, words, contents;
        std::atomic<uint64_t>* wrong;
    };
    static void run(void* data) {
        const std::unique_ptr<const Job> job(static_cast<Job*>(data));
        void* const memory = reinterpret_cast<void*>(job->address);
        if (job->wrong)
            *job->wrong += count_wrong(memory, job->words, job->contents);
        else
            write_pattern(memory, job->words, job->contents);
    }
    void queue(sh_stream stream, const Job& job) {
        auto queued = std::make_unique<Job>(job);
        OK(sh_stream_launch(device_, stream, run, queued.get(), 0));
        (void)queued.release();
    }

    sh_device* const device_;
    std::vector<std::atomic<uint64_t>> wrong_;
};

class CudaPrograms : public DevicePrograms {
public:
    explicit CudaPrograms(size_t counters) : counters_(counters) {
        const auto must = [](CUresult result, const char* what) {
            if (result != CUDA_SUCCESS) throw std::runtime_error(what);
        };
        must(cuda_.module_load(&module_, kPatternProgram), "the driver does not translate the program");
        must(cuda_.module_function(&write_, module_, "sh_test_write"), "sh_test_write");
        must(cuda_.module_function(&check_, module_, "sh_test_check"), "sh_test_check");
        must(cuda_.allocate(&wrong_, counters * sizeof(uint64_t)), "counters");
        CUstream stream = nullptr;
        must(cuda_.stream_create(&stream, CU_STREAM_NON_BLOCKING), "a stream");
        must(cuda_.fill(wrong_, 0, counters * sizeof(uint64_t), stream), "counters");
        must(cuda_.synchronize(stream), "counters");
        must(cuda_.stream_destroy(stream), "a stream");
    }
    ~CudaPrograms() override {
        cuda_.deallocate(wrong_);
        cuda_.module_unload(module_);
    }
    void enter_thread() override { EXPECT_EQ(cuda_.set_current(cuda_.context), CUDA_SUCCESS); }
    void write(sh_stream stream, uint64_t address, uint64_t words, uint64_t contents) override {
        void* arguments[] = {&address, &words, &contents};
        launch(write_, stream, arguments);
    }
    void check(sh_stream stream, uint64_t address, uint64_t words, uint64_t contents, size_t counter) override {
        uint64_t wrong = wrong_ + counter * sizeof(uint64_t);
        void* arguments[] = {&address, &words, &contents, &wrong};
        launch(check_, stream, arguments);
    }
    std::vector<uint64_t> wrong_words() override {
        std::vector<uint64_t> wrong(counters_, UINT64_MAX);
        EXPECT_EQ(cuda_.copy_to_host(wrong.data(), wrong_, counters_ * sizeof(uint64_t)), CUDA_SUCCESS);
        return wrong;
    }

private:
    void launch(CUfunction function, sh_stream stream, void** arguments) {
        CU(cuda_.launch_kernel(function, 64, 1, 1, 256, 1, 1, 0, reinterpret_cast<CUstream>(stream), arguments,
                               nullptr));
    }

    Cuda cuda_;
    const size_t counters_;
    CUmodule module_ = nullptr;
    CUfunction write_ = nullptr, check_ = nullptr;
    CUdeviceptr wrong_ = 0;
};

// Returns NULL if neither the host nor CUDA's driver reaches the device's memory.
inline std::unique_ptr<DevicePrograms> device_programs(sh_device* device, size_t counters) {
    auto caps = sh_sized<sh_device_caps>();
    if (sh_device_get_caps(device, &caps) != SH_OK) return nullptr;
    if (caps.flags & SH_DEVICE_HOST_ADDRESSABLE) return std::make_unique<HostPrograms>(device, counters);
    try {
        return std::make_unique<CudaPrograms>(counters);
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "%s\n", problem.what());
        return nullptr;
    }
}

}  // namespace stagehand::test
