// The GPU's program that unpacks frames, on the first device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "codec/frame.h"
#include "cuda_driver.h"
#include "unpack_ptx.h"

namespace stagehand::test {

inline const char* program_for(codec::FloatFormat format) {
    switch (format) {
        case codec::FloatFormat::bf16:
            return "sh_unpack_bf16";
        case codec::FloatFormat::f16:
            return "sh_unpack_f16";
        case codec::FloatFormat::f32:
            return "sh_unpack_f32";
        case codec::FloatFormat::f8_e4m3:
            return "sh_unpack_f8_e4m3";
        case codec::FloatFormat::f8_e5m2:
            break;
    }
    return "sh_unpack_f8_e5m2";
}

// Unpacks one frame after another. Throws if the driver fails, or if there is none.
class UnpackProgram {
public:
    static constexpr uint8_t kUntouched = 0xa5;
    static constexpr uint64_t kGuard = 256;  // bytes behind the contents that stay untouched

    explicit UnpackProgram(uint64_t most_bytes) {
        check(cuda_.module_load(&module_, kUnpackProgram), "loading the program");
        check(cuda_.stream_create(&stream_, CU_STREAM_NON_BLOCKING), "making a stream");
        check(cuda_.allocate(&frame_, most_bytes + most_bytes / 8 + 4096), "allocating the frame");
        check(cuda_.allocate(&to_, most_bytes + kGuard), "allocating the contents");
        check(cuda_.allocate(&failed_, 4), "allocating a word");
        for (CUevent* event : {&begin_, &end_}) check(cuda_.event_create(event, 0), "making an event");
    }
    ~UnpackProgram() {
        cuda_.synchronize(stream_);
        for (const CUevent event : {begin_, end_}) cuda_.event_destroy(event);
        for (const CUdeviceptr memory : {frame_, to_, failed_}) cuda_.deallocate(memory);
        cuda_.stream_destroy(stream_);
        cuda_.module_unload(module_);
    }
    UnpackProgram(const UnpackProgram&) = delete;
    UnpackProgram& operator=(const UnpackProgram&) = delete;

    void write(const std::vector<uint8_t>& frame, uint64_t contents_bytes) {
        frame_bytes_ = frame.size();
        contents_bytes_ = contents_bytes;
        check(cuda_.copy_to_device(frame_, frame.data(), frame.size(), stream_), "copying a frame");
        check(cuda_.fill(to_, kUntouched, contents_bytes + kGuard, stream_), "filling");
        check(cuda_.fill(failed_, 0, 4, stream_), "filling");
        check(cuda_.synchronize(stream_), "waiting");
    }
    // Returns the milliseconds that it took with so many groups of threads.
    float run(codec::FloatFormat format, uint32_t tiles, uint32_t groups) {
        CUfunction function = nullptr;
        check(cuda_.module_function(&function, module_, program_for(format)), "finding the program");
        uint32_t first = 0;
        void* arguments[] = {&frame_, &frame_bytes_, &contents_bytes_, &first, &tiles, &to_, &failed_};
        check(cuda_.event_record(begin_, stream_), "recording");
        check(cuda_.launch_kernel(function, std::min(groups, tiles), 1, 1, 256, 1, 1, 0, stream_, arguments, nullptr),
              "launching");
        check(cuda_.event_record(end_, stream_), "recording");
        check(cuda_.synchronize(stream_), "unpacking");
        float ms = 0;
        check(cuda_.event_elapsed(&ms, begin_, end_), "reading the time");
        return ms;
    }
    bool failed() {
        uint32_t word = 0;
        check(cuda_.copy_to_host(&word, failed_, 4), "reading");
        return word != 0;
    }
    // The contents and the guard.
    std::vector<uint8_t> read() {
        std::vector<uint8_t> bytes(contents_bytes_ + kGuard);
        check(cuda_.copy_to_host(bytes.data(), to_, bytes.size()), "reading");
        return bytes;
    }

private:
    static void check(CUresult result, const char* what) {
        if (result != CUDA_SUCCESS)
            throw std::runtime_error(std::string(what) + ": CUDA error " + std::to_string(static_cast<int>(result)));
    }

    Cuda cuda_;
    CUmodule module_ = nullptr;
    CUstream stream_ = nullptr;
    CUdeviceptr frame_ = 0, to_ = 0, failed_ = 0;
    CUevent begin_ = nullptr, end_ = nullptr;
    uint64_t frame_bytes_ = 0, contents_bytes_ = 0;
};

}  // namespace stagehand::test
