// A spiller on a device of the host's memory, with tensors whose bytes tell which tensor they belong to.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <stagehand/stagehand.h>

#include "engine.h"

namespace stagehand::test {

// Device memory of the engine. On the host's backend any memory of the process is. It lives until the end of the test,
// since copies may be under way when a test function returns.
class EngineMemory {
public:
    explicit EngineMemory(uint64_t bytes, uint8_t value = 0)
        : bytes_(all().emplace_back(std::make_shared<std::vector<uint8_t>>(bytes, value))) {}
    uint64_t address() const { return reinterpret_cast<uint64_t>(bytes_->data()); }
    std::vector<uint8_t>& bytes() { return *bytes_; }
    static void free_all() { all().clear(); }

private:
    static std::vector<std::shared_ptr<std::vector<uint8_t>>>& all() {
        static std::vector<std::shared_ptr<std::vector<uint8_t>>> memory;
        return memory;
    }

    std::shared_ptr<std::vector<uint8_t>> bytes_;
};

// Work that keeps a stream busy until the gate opens. Copies of what the stream has made wait behind it, however long
// the test's thread takes meanwhile.
class StreamGate {
public:
    StreamGate(sh_device* device, sh_stream stream) {
        const sh_status status = sh_stream_launch(device, stream, wait, this, -1);
        EXPECT_SUCCEEDS(status);
        if (status < 0) passed_ = true;
    }
    ~StreamGate() {
        open();
        while (!passed_) std::this_thread::yield();
    }
    StreamGate(const StreamGate&) = delete;
    StreamGate& operator=(const StreamGate&) = delete;
    void open() { open_ = true; }

private:
    static void wait(void* self) {
        StreamGate& gate = *static_cast<StreamGate*>(self);
        while (!gate.open_) std::this_thread::sleep_for(std::chrono::microseconds(100));
        gate.passed_ = true;
    }

    std::atomic<bool> open_{false}, passed_{false};
};

class SpillerTest : public testing::Test {
protected:
    static constexpr uint64_t kTensor = 64 << 10;

    void create(const sh_spiller_options& options, const std::string& device_options = "capacity=64MiB",
                const char* name = "host") {
        sh_device_options device = SH_DEVICE_OPTIONS_INIT;
        device.backend_options = device_options.c_str();
        device.budget_bytes = 16 << 20;
        SUCCEEDS(sh_device_open(name, &device, &device_));
        SUCCEEDS(sh_stream_create(device_, &stream_));
        SUCCEEDS(sh_spiller_create(device_, &options, &spiller_));
    }
    static sh_spiller_options keeping(uint64_t bytes) {
        sh_spiller_options options = SH_SPILLER_OPTIONS_INIT;
        options.flags = SH_SPILLER_KEEP_BYTES;
        options.keep_bytes = bytes;
        return options;
    }
    // With host memory for one tensor, which is pinned from the beginning.
    static sh_spiller_options keeping_with_one_buffer() {
        static sh_spill_class one = SH_SPILL_CLASS_INIT;
        one.bytes = kTensor;
        one.count = 1;
        sh_spiller_options options = keeping(0);
        options.classes = &one;
        options.class_count = 1;
        return options;
    }
    sh_stream another_stream() {
        EXPECT_SUCCEEDS(sh_stream_create(device_, &others_.emplace_back()));
        return others_.back();
    }
    void TearDown() override {
        sh_spiller_destroy(spiller_);
        for (const sh_stream stream : others_) sh_stream_destroy(device_, stream);
        sh_stream_destroy(device_, stream_);
        sh_device_close(device_);
        EngineMemory::free_all();
    }

    // A tensor of bytes in one dimension. The key is the storage's, 0 for none.
    struct Saved {
        sh_ticket ticket = 0;
        sh_status status = SH_OK;
        std::unique_ptr<EngineMemory> memory;
    };
    static std::vector<uint8_t> contents(uint64_t seed, uint64_t bytes = kTensor) {
        return contents_of(seed, 1, bytes);
    }
    Saved save(uint64_t seed, uint32_t flags = 0, uint64_t bytes = kTensor, uint64_t used = 1) {
        Saved saved;
        saved.memory = std::make_unique<EngineMemory>(bytes);
        saved.memory->bytes() = contents(seed, bytes);
        saved.status = spill(saved.memory->address(), static_cast<int64_t>(bytes), flags, &saved.ticket, 0, used);
        EXPECT_GE(saved.status, 0) << why();
        return saved;
    }
    sh_status spill(uint64_t address, int64_t bytes, uint32_t flags, sh_ticket* ticket, uint64_t key = 0,
                    uint64_t used = 1) {
        sh_saved_tensor tensor = SH_SAVED_TENSOR_INIT;
        tensor.element_bytes = 1;
        tensor.address = address;
        tensor.dimensions = 1;
        tensor.sizes = &bytes;
        tensor.storage_key = key;
        tensor.used_bytes = used;
        return sh_spill(spiller_, &tensor, stream_, flags, ticket);
    }
    // The tickets that have left, whose memory is then overwritten, as an allocator does that gives it to others.
    std::vector<sh_ticket> collect(uint32_t flags = 0) {
        std::vector<sh_ticket> tickets(64);
        uint64_t count = 0;
        EXPECT_SUCCEEDS(sh_spiller_collect(spiller_, stream_, flags, tickets.data(), tickets.size(), &count));
        tickets.resize(count);
        return tickets;
    }
    // Gives the memory of a tensor back, in the order of the stream.
    void give_back(Saved& saved) { give_back(*saved.memory); }
    void give_back(EngineMemory& memory) {
        SUCCEEDS(sh_stream_launch(
            device_, stream_,
            [](void* bytes) { std::ranges::fill(*static_cast<std::vector<uint8_t>*>(bytes), uint8_t{0xee}); },
            &memory.bytes(), 0));
    }
    std::vector<uint8_t> restore(sh_ticket ticket, uint64_t bytes = kTensor) {
        EngineMemory memory(bytes, 0xdd);
        EXPECT_SUCCEEDS(sh_restore(spiller_, ticket, memory.address(), stream_));
        EXPECT_SUCCEEDS(sh_stream_synchronize(device_, stream_));
        return memory.bytes();
    }
    sh_ticket_info info(sh_ticket ticket) {
        auto info = sh_sized<sh_ticket_info>();
        EXPECT_SUCCEEDS(sh_ticket_get_info(spiller_, ticket, &info));
        return info;
    }
    sh_spiller_stats stats() {
        auto stats = sh_sized<sh_spiller_stats>();
        EXPECT_SUCCEEDS(sh_spiller_get_stats(spiller_, &stats));
        return stats;
    }

    // Waits until the pool's thread has pinned this much.
    void wait_for_the_pool(uint64_t bytes) {
        while (stats().pool_bytes < bytes) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }

    sh_device* device_ = nullptr;
    sh_stream stream_ = 0;
    std::vector<sh_stream> others_;
    sh_spiller* spiller_ = nullptr;
};

}  // namespace stagehand::test
