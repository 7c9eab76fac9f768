#include "device_bytes.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "access_order.h"

namespace stagehand::test {
namespace {

// The calls of CUDA's driver that this file uses. They are declared here, because the tests are also built on machines
// without CUDA's headers.
struct Driver {
    int (*init)(unsigned flags);
    int (*device_get)(int* device, int ordinal);
    int (*retain)(void** context, int device);
    int (*push)(void* context);
    int (*pop)(void** context);
    int (*host_alloc)(void** memory, size_t bytes, unsigned flags);
    int (*stream_create)(void** stream, unsigned flags);
    int (*synchronize)(void* stream);
    int (*to_host)(void* to, uint64_t from, size_t bytes, void* stream);
    int (*to_device)(uint64_t to, const void* from, size_t bytes, void* stream);

    Driver() {
        void* const file = dlopen("libcuda.so.1", RTLD_NOW);
        if (!file) throw std::runtime_error(dlerror());
        const auto look_up = [&](auto& member, const char* name) {
            member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(dlsym(file, name));
            if (!member) throw std::runtime_error(std::string("CUDA's driver has no ") + name);
        };
        look_up(init, "cuInit");
        look_up(device_get, "cuDeviceGet");
        look_up(retain, "cuDevicePrimaryCtxRetain");
        look_up(push, "cuCtxPushCurrent_v2");
        look_up(pop, "cuCtxPopCurrent_v2");
        look_up(host_alloc, "cuMemHostAlloc");
        look_up(stream_create, "cuStreamCreate");
        look_up(synchronize, "cuStreamSynchronize");
        look_up(to_host, "cuMemcpyDtoHAsync_v2");
        look_up(to_device, "cuMemcpyHtoDAsync_v2");
    }
};

// Access to one GPU's memory through a few buffers of pinned memory. Nothing is allocated later, because an allocation
// might wait for streams that wait for the test. The context lives as long as the process, so that devices open
// quickly.
class Gpu {
public:
    Gpu(int ordinal, uint64_t largest_bytes) : largest_(largest_bytes) {
        int device = 0;
        must(driver_.init(0), "cuInit");
        must(driver_.device_get(&device, ordinal), "cuDeviceGet");
        must(driver_.retain(&context_, device), "cuDevicePrimaryCtxRetain");
        void* memory = nullptr;
        in_context([&] {
            constexpr unsigned kPortable = 1, kNonBlocking = 1;
            must(driver_.stream_create(&own_stream_, kNonBlocking), "cuStreamCreate");
            must(driver_.host_alloc(&memory, kBuffers * largest_, kPortable), "cuMemHostAlloc");
            return 0;
        });
        for (size_t i = 0; i < kBuffers; i++) free_.push_back(static_cast<uint8_t*>(memory) + i * largest_);
    }

    // Waits until a buffer is free. Buffers come back when the streams make progress.
    uint8_t* take(uint64_t bytes) {
        if (bytes > largest_) throw std::runtime_error("more bytes than the tests have set memory aside for");
        std::unique_lock lock(mutex_);
        if (!back_.wait_for(lock, std::chrono::seconds(60), [&] { return !free_.empty(); }))
            throw std::runtime_error("the streams do not get on");
        uint8_t* const buffer = free_.back();
        free_.pop_back();
        return buffer;
    }
    void give_back(uint8_t* buffer) {
        const std::lock_guard lock(mutex_);
        free_.push_back(buffer);
        back_.notify_all();
    }
    bool wait_for_all() {
        std::unique_lock lock(mutex_);
        return back_.wait_for(lock, std::chrono::seconds(60), [&] { return free_.size() == kBuffers; });
    }

    void* native(sh_stream stream) const {
        return stream == SH_STREAM_HOST ? own_stream_ : reinterpret_cast<void*>(stream);
    }
    sh_status to_host(uint8_t* to, const void* from, uint64_t bytes, sh_stream stream) {
        return told(
            in_context([&] { return driver_.to_host(to, reinterpret_cast<uintptr_t>(from), bytes, native(stream)); }),
            "cuMemcpyDtoHAsync");
    }
    sh_status to_device(void* to, const uint8_t* from, uint64_t bytes, sh_stream stream) {
        return told(
            in_context([&] { return driver_.to_device(reinterpret_cast<uintptr_t>(to), from, bytes, native(stream)); }),
            "cuMemcpyHtoDAsync");
    }
    sh_status synchronize(sh_stream stream) {
        return told(in_context([&] { return driver_.synchronize(native(stream)); }), "cuStreamSynchronize");
    }

private:
    static constexpr size_t kBuffers = 24;

    static void must(int result, const char* call) {
        if (result) throw std::runtime_error(std::string(call) + " gives " + std::to_string(result));
    }
    static sh_status told(int result, const char* call) {
        if (!result) return SH_OK;
        ADD_FAILURE() << call << " gives " << result;
        return SH_ERROR_BACKEND;
    }
    // The context is current only for the duration of the call, as an engine may do it.
    template <class Call>
    int in_context(Call call) {
        if (const int result = driver_.push(context_)) return result;
        const int result = call();
        void* popped = nullptr;
        driver_.pop(&popped);
        return result;
    }

    const Driver driver_;
    const uint64_t largest_;
    void* context_ = nullptr;
    void* own_stream_ = nullptr;  // for the calling thread; no other stream waits for it
    std::mutex mutex_;
    std::condition_variable back_;
    std::vector<uint8_t*> free_;
};

Gpu* reached = nullptr;

Gpu& gpu() {
    if (!reached) throw std::runtime_error("there is no way to look at this device's memory");
    return *reached;
}

// A buffer that is given back when the last queued work that uses it has run.
using Buffer = std::shared_ptr<uint8_t>;
Buffer take_buffer(uint64_t bytes) {
    return Buffer(gpu().take(bytes), [](uint8_t* buffer) { gpu().give_back(buffer); });
}

void run(void* data) {
    const std::unique_ptr<std::function<void()>> work(static_cast<std::function<void()>*>(data));
    (*work)();
}

// The function is freed and has not run if this fails.
sh_status launch(sh_device* device, sh_stream stream, std::function<void()> work, int64_t busy_ns = 0) {
    auto queued = std::make_unique<std::function<void()>>(std::move(work));
    const sh_status status = sh_stream_launch(device, stream, run, queued.get(), busy_ns);
    if (status == SH_OK) (void)queued.release();
    return status;
}

// Queues `work` on the buffer after the earlier work. The buffer is kept until earlier copies have finished, even if
// the work cannot be queued.
sh_status queue(sh_device* device, sh_stream stream, const Buffer& buffer, const DeviceBytes::Change& work) {
    if (stream != SH_STREAM_HOST) {
        const sh_status status = launch(device, stream, [buffer, work] { work(buffer.get()); });
        if (status != SH_OK) (void)gpu().synchronize(stream);
        return status;
    }
    const sh_status status = gpu().synchronize(stream);
    if (status == SH_OK) work(buffer.get());
    return status;
}

bool host_addressable(sh_device* device) {
    auto caps = sh_sized<sh_device_caps>();
    if (sh_device_get_caps(device, &caps) != SH_OK) throw std::runtime_error("a device without capabilities");
    return caps.flags & SH_DEVICE_HOST_ADDRESSABLE;
}

}  // namespace

void reach_gpu_memory(int ordinal, uint64_t largest_bytes) {
    if (!reached) reached = new Gpu(ordinal, largest_bytes);  // streams may use it until the process has ended
}

DeviceBytes::DeviceBytes(sh_device* device) : device_(device), on_host_(host_addressable(device)) {}

// Runs the work on the memory itself.
sh_status DeviceBytes::work(sh_stream stream, void* address, Change work, int64_t busy_ns) {
    if (stream != SH_STREAM_HOST)
        return launch(
            device_, stream, [address, work = std::move(work)] { work(static_cast<uint8_t*>(address)); }, busy_ns);
    work(static_cast<uint8_t*>(address));
    return SH_OK;
}

// What is queued next would have to come after it.
sh_status DeviceBytes::noted(sh_status status, sh_stream stream, const void* address, uint64_t bytes, bool writes) {
    if (status == SH_OK) note_access(device_, stream, address, bytes, writes);
    return status;
}

sh_status DeviceBytes::look(sh_stream stream, const void* address, uint64_t bytes, Look look, int64_t busy_ns) {
    return noted(look_at(stream, address, bytes, std::move(look), busy_ns), stream, address, bytes, false);
}

sh_status DeviceBytes::change(sh_stream stream, void* address, uint64_t bytes, Change change) {
    return noted(change_at(stream, address, bytes, std::move(change)), stream, address, bytes, true);
}

sh_status DeviceBytes::write(sh_stream stream, void* address, const std::vector<uint8_t>& bytes) {
    return noted(write_at(stream, address, bytes), stream, address, bytes.size(), true);
}

sh_status DeviceBytes::look_at(sh_stream stream, const void* address, uint64_t bytes, Look look, int64_t busy_ns) {
    if (on_host_) return work(stream, const_cast<void*>(address), std::move(look), busy_ns);
    // The stream is busy first, so that the test sees a copy that should have waited for this use.
    if (busy_ns > 0 && stream != SH_STREAM_HOST)
        if (const sh_status status = sh_stream_launch(device_, stream, nullptr, nullptr, busy_ns); status != SH_OK)
            return status;
    const Buffer buffer = take_buffer(bytes);
    if (const sh_status status = gpu().to_host(buffer.get(), address, bytes, stream); status != SH_OK) return status;
    return queue(device_, stream, buffer, std::move(look));
}

sh_status DeviceBytes::change_at(sh_stream stream, void* address, uint64_t bytes, Change change) {
    if (on_host_) return work(stream, address, std::move(change), 0);
    const Buffer buffer = take_buffer(bytes);
    if (const sh_status status = gpu().to_host(buffer.get(), address, bytes, stream); status != SH_OK) return status;
    if (const sh_status status = queue(device_, stream, buffer, std::move(change)); status != SH_OK) return status;
    if (const sh_status status = gpu().to_device(address, buffer.get(), bytes, stream); status != SH_OK) return status;
    (void)queue(device_, stream, buffer, [](uint8_t*) {});
    return SH_OK;
}

sh_status DeviceBytes::write_at(sh_stream stream, void* address, const std::vector<uint8_t>& bytes) {
    if (on_host_)
        return work(
            stream, address, [bytes](uint8_t* at) { std::memcpy(at, bytes.data(), bytes.size()); }, 0);
    const Buffer buffer = take_buffer(bytes.size());
    std::memcpy(buffer.get(), bytes.data(), bytes.size());
    if (const sh_status status = gpu().to_device(address, buffer.get(), bytes.size(), stream); status != SH_OK)
        return status;
    (void)queue(device_, stream, buffer, [](uint8_t*) {});
    return SH_OK;
}

void DeviceBytes::settle() {
    if (on_host_ || !reached) return;
    EXPECT_TRUE(reached->wait_for_all()) << "the streams do not get on";
}

std::vector<uint8_t> DeviceBytes::read(const void* address, uint64_t bytes) {
    std::vector<uint8_t> result;
    const sh_status status =
        look(SH_STREAM_HOST, address, bytes, [&](const uint8_t* at) { result.assign(at, at + bytes); });
    EXPECT_EQ(status, SH_OK);
    return result;
}

}  // namespace stagehand::test
