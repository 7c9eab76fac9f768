// Copies and fills: every byte, in stream order.
#include "instantiate.h"

namespace conformance {
namespace {

class CopyTest : public Conformance {};

TEST_P(CopyTest, SizesAndOffsetsAreFree) {
    const Memory memory = new_memory(6 * page());
    for (const uint64_t offset : {uint64_t(0), uint64_t(1), page() - 1, page() + 7}) {
        for (const uint64_t bytes :
             {uint64_t(1), uint64_t(3), uint64_t(64), page() - 1, page(), page() + 17, 4 * page() + 5}) {
            const auto data = pattern(bytes, offset + bytes);
            write(memory.address + offset, data);
            expect_contents(memory.address + offset, data);
        }
    }
}

TEST_P(CopyTest, NeighboursOfACopyStay) {
    const Memory memory = new_memory(2 * page());
    auto around = pattern(2 * page(), 1);
    write(memory.address, around);
    const auto data = pattern(page(), 2);
    write(memory.address + 100, data);
    std::copy(data.begin(), data.end(), around.begin() + 100);
    expect_contents(memory.address, around);
}

TEST_P(CopyTest, OneCopySpansManyPages) {
    if (!has(SH_BACKEND_FIXED_ADDRESSES)) GTEST_SKIP() << "this device does not map memory by pages";
    const uint64_t count = 64;
    auto pages = new_pages(count);
    std::vector<sh_backend_page> shuffled;
    for (uint64_t i = 0; i < count; ++i) shuffled.push_back(pages[i * 37 % count]);
    const uint64_t range = new_range(count * page());
    map(range, shuffled);
    const auto data = pattern(count * page(), 3);
    write(range, data);
    expect_contents(range, data);
}

TEST_P(CopyTest, FillSetsExactlyItsBytes) {
    const Memory memory = new_memory(3 * page());
    const sh_stream stream = new_stream();
    auto expected = pattern(3 * page(), 4);
    write(memory.address, expected);
    const uint64_t offsets[] = {3, page() + 1, 2 * page()}, sizes[] = {1, page() / 2 + 5, page()};
    for (int i = 0; i < 3; ++i) {
        const uint8_t value = static_cast<uint8_t>(0x80 + i);
        SH_OK_OR_END(backend().fill(device(), stream, memory.address + offsets[i], value, sizes[i]));
        std::fill_n(expected.begin() + offsets[i], sizes[i], value);
    }
    SH_OK_OR_END(backend().stream_synchronize(device(), stream));
    expect_contents(memory.address, expected);
}

TEST_P(CopyTest, CopiesOnTheDevice) {
    const Memory from = new_memory(2 * page()), to = new_memory(2 * page());
    const sh_stream stream = new_stream();
    const auto data = pattern(2 * page(), 5);
    auto expected = pattern(2 * page(), 6);
    write(from.address, data);
    write(to.address, expected);
    SH_OK_OR_END(backend().copy_on_device(device(), stream, to.address + 11, from.address + 5, page()));
    SH_OK_OR_END(backend().stream_synchronize(device(), stream));
    std::copy_n(data.begin() + 5, page(), expected.begin() + 11);
    expect_contents(to.address, expected);
    expect_contents(from.address, data);
}

TEST_P(CopyTest, HashesTellWhatChanged) {
    if (!backend().contents_hash) GTEST_SKIP() << "this backend hashes no contents";
    constexpr uint64_t kBytes = 3 * 4096;
    const Memory memory = new_memory(8 * kBytes);
    const sh_stream stream = new_stream();
    std::vector<sh_backend_range> ranges;
    for (uint64_t i = 0; i < 8; ++i) {
        write(memory.address + i * kBytes, pattern(kBytes, i % 4));
        ranges.push_back({memory.address + i * kBytes, kBytes});
    }
    std::vector<sh_backend_digest> before(8), after(8);
    const sh_status status = backend().contents_hash(device(), stream, 8, ranges.data(), before.data());
    if (status == SH_ERROR_UNSUPPORTED) GTEST_SKIP() << backend().last_error();
    SH_OK_OR_END(status);
    // The hash comes after what is on its stream.
    SH_OK_OR_END(backend().fill(device(), stream, memory.address + 5 * kBytes + 4711, 0x5a, 1));
    SH_OK_OR_END(backend().contents_hash(device(), stream, 8, ranges.data(), after.data()));
    const auto equal = [](const sh_backend_digest& a, const sh_backend_digest& b) {
        return a.words[0] == b.words[0] && a.words[1] == b.words[1];
    };
    for (size_t i = 0; i < 8; ++i) {
        EXPECT_EQ(equal(before[i], after[i]), i != 5) << i;
        for (size_t k = 0; k < i; ++k) EXPECT_EQ(equal(before[i], before[k]), i % 4 == k % 4) << i << ' ' << k;
    }
    SH_OK_OR_END(backend().contents_hash(device(), stream, 0, nullptr, nullptr));
}

TEST_P(CopyTest, AStreamKeepsItsOrder) {
    const Memory memory = new_memory(2 * page());
    const sh_stream stream = new_stream();
    const auto first = pattern(page(), 7), second = pattern(page(), 8);
    std::vector<uint8_t> after_first(page()), after_second(page()), after_fill(page()), at_the_end(page());
    SH_OK_OR_END(backend().copy_to_device(device(), stream, memory.address, first.data(), page()));
    SH_OK_OR_END(backend().copy_to_host(device(), stream, after_first.data(), memory.address, page()));
    SH_OK_OR_END(backend().copy_to_device(device(), stream, memory.address, second.data(), page()));
    SH_OK_OR_END(backend().copy_to_host(device(), stream, after_second.data(), memory.address, page()));
    SH_OK_OR_END(backend().copy_on_device(device(), stream, memory.address + page(), memory.address, page()));
    SH_OK_OR_END(backend().fill(device(), stream, memory.address, 0x5a, page()));
    SH_OK_OR_END(backend().copy_to_host(device(), stream, after_fill.data(), memory.address, page()));
    SH_OK_OR_END(backend().copy_to_host(device(), stream, at_the_end.data(), memory.address + page(), page()));
    SH_OK_OR_END(backend().stream_synchronize(device(), stream));
    if (!has_contents()) GTEST_SKIP() << "this device has no contents";
    EXPECT_EQ(after_first, first);
    EXPECT_EQ(after_second, second);
    EXPECT_EQ(after_fill, std::vector<uint8_t>(page(), 0x5a));
    EXPECT_EQ(at_the_end, second);
}

TEST_P(CopyTest, PinnedMemoryIsCopiedAsWell) {
    const uint64_t bytes = 4 * std::max<uint64_t>(page(), 4096);
    const Memory memory = new_memory(bytes);
    const sh_stream stream = new_stream();
    auto from = pattern(bytes, 9);
    std::vector<uint8_t> to(bytes);
    SH_OK_OR_END(backend().host_register(device(), from.data(), bytes));
    SH_OK_OR_END(backend().copy_to_device(device(), stream, memory.address, from.data(), bytes));
    SH_OK_OR_END(backend().copy_to_host(device(), stream, to.data(), memory.address, bytes));
    SH_OK_OR_END(backend().stream_synchronize(device(), stream));
    SH_OK_OR_END(backend().host_unregister(device(), from.data()));
    if (has_contents()) {
        EXPECT_EQ(to, from);
    }
}

TEST_P(CopyTest, TheHostSeesDeviceMemoryWhereItMay) {
    if (!has(SH_BACKEND_HOST_ADDRESSABLE)) GTEST_SKIP() << "the host cannot touch this device's memory";
    const Memory memory = new_memory(page());
    const auto data = pattern(page(), 10);
    write(memory.address, data);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(memory.address);
    EXPECT_EQ(std::vector<uint8_t>(bytes, bytes + page()), data);
}

TEST_P(CopyTest, MemoryThatIsNotMappedIsAnError) {
    if (!quirks().checks_handles) GTEST_SKIP() << "drivers do not check this";
    const Memory memory = new_memory(page());
    // Without pages a range is memory until it is given back, and other threads may then have memory in its place. The
    // first page of a process never is memory.
    const bool plain = !has(SH_BACKEND_FIXED_ADDRESSES);
    const sh_stream stream = new_stream();
    std::vector<uint8_t> host(2 * page());
    uint64_t range = 4096;
    if (!plain) {
        SH_EXPECT_OK(backend().range_reserve(device(), 2 * page(), page(), &range));
    }
    SH_EXPECT_FAILURE(backend().copy_to_device(device(), stream, range, host.data(), page()));
    SH_EXPECT_FAILURE(backend().copy_to_host(device(), stream, host.data(), range, page()));
    SH_EXPECT_FAILURE(backend().copy_on_device(device(), stream, memory.address, range, page()));
    SH_EXPECT_FAILURE(backend().copy_on_device(device(), stream, range, memory.address, page()));
    SH_EXPECT_FAILURE(backend().copy_on_device(device(), stream, 0, memory.address, page()));
    SH_EXPECT_FAILURE(backend().fill(device(), stream, range, 1, page()));
    if (plain) return;  // what lies behind a piece may be another
    SH_EXPECT_FAILURE(backend().copy_to_device(device(), stream, memory.address + page() / 2, host.data(), page()));
    SH_EXPECT_OK(backend().range_free(device(), range, 2 * page()));
}

SH_ON_EVERY_BACKEND(CopyTest);

}  // namespace
}  // namespace conformance
