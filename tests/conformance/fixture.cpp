#include "fixture.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "plugins/backends.h"

namespace conformance {

Quirks quirks_of(const BackendSpec& spec, const sh_backend_device_info& info) {
    Quirks quirks;
    if (info.flags & SH_BACKEND_IS_GPU) {
        quirks.checks_handles = false;    // drivers follow them
        quirks.exact_accounting = false;  // drivers keep memory for themselves, and others use the device
        quirks.many_pages = 512;
    }
    if (info.flags & SH_BACKEND_VIRTUAL_TIME) quirks.many_pages = 200000;
    // Each page that is mapped apart from its neighbours is one mapping of the process, and the number of mappings is
    // limited.
    if (spec.name == "fault") quirks.many_pages = 1024;
    return quirks;
}

void Conformance::SetUp() {
    const BackendSpec& spec = GetParam();
    const stagehand::Status status = stagehand::plugins::find_backend(spec.name.c_str(), nullptr, &backend_, nullptr);
    if (!status.ok()) GTEST_SKIP() << status.text();
    info_.struct_size = sizeof info_;
    const sh_status opened =
        backend().device_open(spec.index, spec.options.empty() ? nullptr : spec.options.c_str(), &device_, &info_);
    if (opened == SH_ERROR_BACKEND_UNAVAILABLE) GTEST_SKIP() << backend().last_error();
    ASSERT_GE(opened, 0) << backend().last_error();
    quirks_ = quirks_of(spec, info_);
    free_at_start_ = free_bytes();
    copies_ = new_stream();
}

void Conformance::TearDown() {
    if (!device_) return;
    for (const sh_stream stream : streams_) {
        SH_EXPECT_OK(backend().stream_synchronize(device_, stream));
        SH_EXPECT_OK(backend().stream_destroy(device_, stream));
    }
    for (const sh_backend_event event : events_) SH_EXPECT_OK(backend().event_destroy(device_, event));
    for (const Mapping& m : mappings_) SH_EXPECT_OK(backend().pages_unmap(device_, m.address, m.page_bytes, m.count));
    for (const Pages& p : pages_)
        SH_EXPECT_OK(backend().pages_destroy(device_, p.page_bytes, p.pages.size(), p.pages.data()));
    for (const Range& r : ranges_) SH_EXPECT_OK(backend().range_free(device_, r.address, r.bytes));
    if (quirks_.exact_accounting) {
        EXPECT_EQ(free_bytes(), free_at_start_);
    }
    backend().device_close(device_);
}

sh_stream Conformance::new_stream() {
    sh_stream stream = 0;
    SH_EXPECT_OK(backend().stream_create(device_, &stream));
    std::lock_guard lock(mutex_);
    streams_.push_back(stream);
    return stream;
}

sh_backend_event Conformance::new_event(bool timing) {
    sh_backend_event event = 0;
    SH_EXPECT_OK(backend().event_create(device_, timing, &event));
    EXPECT_NE(event, 0u);
    std::lock_guard lock(mutex_);
    events_.push_back(event);
    return event;
}

uint64_t Conformance::new_range(uint64_t bytes) {
    uint64_t address = 0;
    SH_EXPECT_OK(backend().range_reserve(device_, bytes, page(), &address));
    EXPECT_NE(address, 0u);
    std::lock_guard lock(mutex_);
    ranges_.push_back({address, bytes});
    return address;
}

std::vector<sh_backend_page> Conformance::new_pages(uint64_t count, uint64_t page_bytes) {
    if (!page_bytes) page_bytes = page();
    std::vector<sh_backend_page> pages(count);
    SH_EXPECT_OK(backend().pages_create(device_, page_bytes, count, pages.data()));
    std::lock_guard lock(mutex_);
    pages_.push_back({page_bytes, pages});
    return pages;
}

void Conformance::map(uint64_t address, const std::vector<sh_backend_page>& pages) {
    SH_OK_OR_END(backend().pages_map(device_, address, page(), pages.size(), pages.data()));
    std::lock_guard lock(mutex_);
    mappings_.push_back({address, page(), pages.size()});
}

void Conformance::unmap(uint64_t address, uint64_t count) {
    SH_OK_OR_END(backend().pages_unmap(device_, address, page(), count));
    std::lock_guard lock(mutex_);
    for (auto mapping = mappings_.begin(); mapping != mappings_.end(); ++mapping) {
        if (mapping->address != address || mapping->count != count) continue;
        mappings_.erase(mapping);
        return;
    }
    ADD_FAILURE() << "the test unmaps what it did not map in one piece";
}

Memory Conformance::new_memory(uint64_t bytes, uint64_t page_bytes) {
    Memory memory;
    memory.page_bytes = page_bytes ? page_bytes : page();
    memory.bytes = (bytes + memory.page_bytes - 1) / memory.page_bytes * memory.page_bytes;
    if (!has(SH_BACKEND_FIXED_ADDRESSES)) {  // addresses come with their memory
        memory.address = new_range(memory.bytes);
        return memory;
    }
    memory.pages = new_pages(memory.bytes / memory.page_bytes, memory.page_bytes);
    SH_EXPECT_OK(backend().range_reserve(device_, memory.bytes, std::bit_floor(memory.page_bytes), &memory.address));
    SH_EXPECT_OK(
        backend().pages_map(device_, memory.address, memory.page_bytes, memory.pages.size(), memory.pages.data()));
    std::lock_guard lock(mutex_);
    ranges_.push_back({memory.address, memory.bytes});
    mappings_.push_back({memory.address, memory.page_bytes, memory.pages.size()});
    return memory;
}

void Conformance::write(uint64_t address, const std::vector<uint8_t>& bytes) {
    SH_OK_OR_END(backend().copy_to_device(device_, copies_, address, bytes.data(), bytes.size()));
    SH_OK_OR_END(backend().stream_synchronize(device_, copies_));
}

std::vector<uint8_t> Conformance::read(uint64_t address, uint64_t bytes) {
    std::vector<uint8_t> result(bytes, 0xee);
    SH_EXPECT_OK(backend().copy_to_host(device_, copies_, result.data(), address, bytes));
    SH_EXPECT_OK(backend().stream_synchronize(device_, copies_));
    return result;
}

void Conformance::expect_contents(uint64_t address, const std::vector<uint8_t>& bytes) {
    const std::vector<uint8_t> there = read(address, bytes.size());
    if (!has_contents() || there == bytes) return;
    size_t at = 0;
    while (there[at] == bytes[at]) ++at;
    ADD_FAILURE() << "byte " << at << " of " << bytes.size() << " is " << int(there[at]) << ", not " << int(bytes[at]);
}

bool Conformance::is_done(sh_backend_event event) {
    uint32_t done = 2;
    SH_EXPECT_OK(backend().event_query(device_, event, &done));
    EXPECT_LE(done, 1u);
    return done == 1;
}

uint64_t Conformance::free_bytes() {
    uint64_t free = 0, total = 0;
    SH_EXPECT_OK(backend().memory_info(device_, &free, &total));
    EXPECT_LE(free, total);
    return free;
}

PinnedBytes::PinnedBytes(const sh_backend& backend, sh_backend_device* device, const std::vector<uint8_t>& bytes)
    : backend_(backend), device_(device), size_(bytes.size()) {
    constexpr uint64_t kPage = 4096;  // nothing else may lie in its pages
    memory_ = static_cast<uint8_t*>(std::aligned_alloc(kPage, (size_ + kPage - 1) / kPage * kPage));
    std::memcpy(memory_, bytes.data(), size_);
    EXPECT_GE(backend_.host_register(device_, memory_, size_), 0) << backend_.last_error();
}

PinnedBytes::~PinnedBytes() {
    EXPECT_GE(backend_.host_unregister(device_, memory_), 0) << backend_.last_error();
    std::free(memory_);
}

Hold::Hold(const sh_backend& backend, sh_backend_device* device, const sh_backend_device_info& info, sh_stream stream)
    : backend_(backend), device_(device), stream_(stream) {
    if (info.flags & SH_BACKEND_VIRTUAL_TIME) {
        gate_->open = true;
        status_ = backend.stream_launch(device, stream, nullptr, nullptr, 1000000000);
    } else {
        status_ = backend.stream_launch(device, stream, wait_at, gate_.get(), -1);
        if (status_ < 0) gate_->open = true;
    }
}

void Hold::wait_at(void* pointer) {
    Gate& gate = *static_cast<Gate*>(pointer);
    std::unique_lock lock(gate.mutex);
    gate.opened.wait(lock, [&] { return gate.open; });
}

// Returns when the stream has passed the gate. The gate is no longer needed then.
void Hold::release() {
    {
        std::lock_guard lock(gate_->mutex);
        if (gate_->open) return;
        gate_->open = true;
        gate_->opened.notify_all();
    }
    EXPECT_GE(backend_.stream_synchronize(device_, stream_), 0) << backend_.last_error();
}

std::vector<uint8_t> pattern(uint64_t bytes, uint64_t seed) {
    constexpr uint64_t kPeriod = 65521;  // a prime, so that no two pages are the same
    std::vector<uint8_t> result(bytes);
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (uint64_t at = 0; at < std::min(bytes, kPeriod); ++at) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        result[at] = static_cast<uint8_t>(state >> 56);
    }
    for (uint64_t at = kPeriod; at < bytes; at += kPeriod)
        std::memcpy(result.data() + at, result.data(), std::min(kPeriod, bytes - at));
    return result;
}

}  // namespace conformance
