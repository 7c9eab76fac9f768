// sh_verify_block() finds each byte on the device that differs from the source.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "device_bytes.h"
#include "unpacking_fixture.h"

namespace stagehand::test {
namespace {

class Verify : public UnpackingTest {
protected:
    using Memory = std::vector<uint8_t>;

    // Of plain memory unless a change says otherwise.
    template <class Change>
    sh_block add(const Memory& memory, Change&& change) {
        sh_segment segment = memory_segment(memory.data(), memory.size());
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.segments = &segment;
        desc.segment_count = 1;
        desc.bytes = memory.size();
        desc.name = "head";
        change(desc, segment);
        sh_block block = 0;
        EXPECT_SUCCEEDS(sh_register_blocks(runtime_, &desc, 1, &block));
        return block;
    }
    sh_block add(const Memory& memory) {
        return add(memory, [](sh_block_desc&, sh_segment&) {});
    }
    void expect(sh_block block, sh_status status, const std::string& says = "") {
        EXPECT_EQ(sh_verify_block(runtime_, block, SH_STREAM_HOST), status) << why();
        if (status == SH_OK) return;
        EXPECT_NE(why().find("head"), std::string::npos) << why();
        EXPECT_NE(why().find(says), std::string::npos) << why();
    }
    // Changes a byte on the device without a word to the library.
    void damage(const sh_view& view, uint64_t at) {
        DeviceBytes bytes(device_.get());
        SUCCEEDS(bytes.change(SH_STREAM_HOST, static_cast<uint8_t*>(view.address) + at, 1,
                              [](uint8_t* byte) { *byte ^= 0x40; }));
    }
    // In each byte that is tried, and nowhere else.
    void expect_found(sh_block block, std::initializer_list<uint64_t> places) {
        sh_view view = held_view(runtime_, block);
        expect(block, SH_OK);
        for (const uint64_t at : places) {
            damage(view, at);
            expect(block, SH_ERROR_CHECKSUM, "byte " + std::to_string(at) + " is 0x");
            damage(view, at);
            expect(block, SH_OK);
        }
        let_go(runtime_, block);
    }
    static Memory some(uint64_t bytes) { return weights(FloatFormat::bf16, bytes / 2, 3); }
};

TEST_F(Verify, FindsAByteOfEachKindOfSource) {
    const Memory memory = some(9'000'000);  // several pieces
    PackedTensor& tensor = packed(FloatFormat::bf16, 4'500'000);
    const uint64_t last = memory.size() - 1;
    const Memory mapped = memory;
    expect_found(add(memory), {0, 4'194'303, 4'194'304, last});
    expect_found(add(memory, [](sh_block_desc& desc, sh_segment&) { desc.flags = SH_BLOCK_PIN; }), {last});
    expect_found(add(mapped, [](sh_block_desc&, sh_segment& one) { one.kind = SH_SOURCE_MAPPED; }), {1, last});
    expect_found(add(memory,
                     [](sh_block_desc& desc, sh_segment& one) {
                         desc.flags = SH_BLOCK_PACK;
                         one.format = SH_FORMAT_BF16;
                     }),
                 {0, 524'288, last});
    expect_found(add(memory,
                     [&](sh_block_desc&, sh_segment& one) {
                         one.kind = SH_SOURCE_FILE;
                         one.file = tensor.descriptor();
                         one.packed_bytes = tensor.frame.size();
                     }),
                 {5'000'000});
    expect_found(add(memory,
                     [](sh_block_desc&, sh_segment& one) {
                         one.kind = SH_SOURCE_FILL;
                         one.fill = [](void* to, uint64_t offset, uint64_t bytes, void*) {
                             for (uint64_t k = 0; k < bytes; k++)
                                 static_cast<uint8_t*>(to)[k] = static_cast<uint8_t>((offset + k) * 7);
                             return 0;
                         };
                     }),
                 {3, last});
}

// A byte that no segment covers may be anything.
TEST_F(Verify, ComparesWhatSegmentsCover) {
    const Memory memory = some(100'000);
    const sh_block block = add(memory, [](sh_block_desc& desc, sh_segment& one) {
        one.offset = 1000;
        one.bytes = 50'000;
        desc.bytes = 100'000;
    });
    expect_found(block, {1000, 50'999});
    sh_view view = held_view(runtime_, block);
    for (const uint64_t at : {0, 999, 51'000, 99'999}) damage(view, at);
    expect(block, SH_OK);
    let_go(runtime_, block);
}

TEST_F(Verify, LooksAfterTheWorkOfTheStream) {
    Memory memory = some(1'000'000);
    const sh_block block = add(memory);
    const sh_stream stream = device_.stream();
    sh_view view = held_view(runtime_, block, stream);
    DeviceBytes bytes(device_.get());
    SUCCEEDS(bytes.look(
        stream, view.address, 1, [](const uint8_t*) {}, 20'000'000));
    SUCCEEDS(bytes.change(stream, view.address, 1, [](uint8_t* byte) { *byte ^= 1; }));
    EXPECT_EQ(sh_verify_block(runtime_, block, stream), SH_ERROR_CHECKSUM);
    let_go(runtime_, block, stream);
}

TEST_F(Verify, SaysWhatCannotBeCompared) {
    Memory memory = some(100'000);
    const sh_block block = add(memory, [](sh_block_desc& desc, sh_segment&) { desc.flags = SH_BLOCK_MUTABLE; });
    const sh_block patched = add(memory, [](sh_block_desc& desc, sh_segment&) {
        desc.on_load = [](const sh_loaded_range*, void*) { return 0; };
    });
    expect(block, SH_ERROR_INVALID_STATE, "no view");
    sh_view view = held_view(runtime_, patched);
    expect(patched, SH_ERROR_UNSUPPORTED, "on_load");
    let_go(runtime_, patched);
    view = held_view(runtime_, block);
    SUCCEEDS(sh_mark_dirty(runtime_, block));
    expect(block, SH_ERROR_INVALID_STATE, "changes");
    let_go(runtime_, block);
    SUCCEEDS(sh_write_back(runtime_, nullptr, 0));
    view = held_view(runtime_, block);
    expect(block, SH_OK);
    SUCCEEDS(sh_source_update_begin(runtime_, &block, 1));
    expect(block, SH_ERROR_INVALID_STATE, "updated");
    memory[5] ^= 1;
    SUCCEEDS(sh_source_update_end(runtime_, &block, 1));
    expect(block, SH_ERROR_INVALID_STATE, "invalidated");
    let_go(runtime_, block);
    expect_found(block, {5});
    EXPECT_EQ(sh_verify_block(runtime_, block + 1000, SH_STREAM_HOST), SH_ERROR_INVALID_HANDLE);
}

// An update waits until nobody reads the source. The block stays, although the engine has released it.
TEST_F(Verify, HoldsTheBlockAndItsSource) {
    struct Gate {
        std::atomic<bool> closed = false, reached = false;
    } gate;
    const Memory memory(2 << 20);
    const sh_block block = add(memory, [&](sh_block_desc&, sh_segment& one) {
        one.kind = SH_SOURCE_FILL;
        one.user_data = &gate;
        one.fill = [](void* to, uint64_t, uint64_t bytes, void* data) {
            auto& at = *static_cast<Gate*>(data);
            if (at.closed) at.reached = true;
            while (at.closed) std::this_thread::yield();
            std::memset(to, 7, bytes);
            return 0;
        };
    });
    held_view(runtime_, block);
    gate.closed = true;
    std::thread verifies([&] { EXPECT_SUCCEEDS(sh_verify_block(runtime_, block, SH_STREAM_HOST)); });
    while (!gate.reached) std::this_thread::yield();
    let_go(runtime_, block);
    std::atomic<bool> began = false;
    std::thread updates([&] {
        EXPECT_SUCCEEDS(sh_source_update_begin(runtime_, &block, 1));
        EXPECT_FALSE(gate.closed) << "the source was being read";
        began = true;
        EXPECT_SUCCEEDS(sh_source_update_end(runtime_, &block, 1));
    });
    auto other = sh_sized<sh_view>();
    while (sh_acquire(runtime_, block, SH_STREAM_HOST, SH_ACQUIRE_NO_WAIT, &other) == SH_OK) let_go(runtime_, block);
    EXPECT_FALSE(began);
    gate.closed = false;
    verifies.join();
    updates.join();
}

TEST_F(Verify, LetsABlockGoWhenItHasEnded) {
    std::atomic<bool> closed = false, reached = false, gone = false;
    std::atomic<bool>* const gates[] = {&closed, &reached};
    const Memory memory(1000);
    const sh_block block = add(memory, [&](sh_block_desc&, sh_segment& one) {
        one.kind = SH_SOURCE_FILL;
        one.user_data = const_cast<std::atomic<bool>**>(gates);
        one.fill = [](void* to, uint64_t, uint64_t bytes, void* data) {
            std::atomic<bool>* const* const at = static_cast<std::atomic<bool>**>(data);
            if (*at[0]) *at[1] = true;
            while (*at[0]) std::this_thread::yield();
            std::memset(to, 7, bytes);
            return 0;
        };
    });
    held_view(runtime_, block);
    closed = true;
    std::thread verifies([&] { EXPECT_SUCCEEDS(sh_verify_block(runtime_, block, SH_STREAM_HOST)); });
    while (!reached) std::this_thread::yield();
    EXPECT_EQ(sh_unregister_blocks(runtime_, &block, 1), SH_ERROR_INVALID_STATE) << "the engine holds it, too";
    let_go(runtime_, block);
    std::thread unregisters([&] {
        EXPECT_SUCCEEDS(sh_unregister_blocks(runtime_, &block, 1));
        EXPECT_FALSE(closed);
        gone = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(gone);
    closed = false;
    verifies.join();
    unregisters.join();
}

// All of a model, some of it packed on the device.
TEST_F(Verify, AgreesWithWhatWasUnpacked) {
    for (int i = 0; i < 19; i++) add_block(runtime_, SH_BLOCK_PIN, {{FloatFormat::bf16, kDeviceMiB + 3}});
    set_schedule();
    for (int step = 0; step < 3; step++) {
        SUCCEEDS(sh_step_begin(runtime_, nullptr));
        for (const sh_block block : blocks_) {
            held_view(runtime_, block);
            SUCCEEDS(sh_verify_block(runtime_, block, SH_STREAM_HOST));
            let_go(runtime_, block);
        }
        SUCCEEDS(sh_step_end(runtime_));
    }
    EXPECT_GT(plan().packed_resident_bytes, 0u);
}

}  // namespace
}  // namespace stagehand::test
