// The owners of stagehand.hpp: they stream a model, release by scope, transfer ownership, and throw the library's
// errors.
#include <stagehand/stagehand.hpp>

#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "owners.hpp"

namespace {

namespace sh = stagehand;

static_assert(!std::is_copy_constructible_v<sh::Device> && std::is_nothrow_move_constructible_v<sh::Device>);
static_assert(!std::is_copy_constructible_v<sh::Runtime> && std::is_nothrow_move_assignable_v<sh::Runtime>);
static_assert(!std::is_copy_constructible_v<sh::View> && std::is_nothrow_move_constructible_v<sh::View>);
static_assert(!std::is_copy_constructible_v<sh::Stream> && !std::is_copy_constructible_v<sh::PinnedMemory>);
static_assert(!std::is_copy_constructible_v<sh::Step> && !std::is_copy_constructible_v<sh::SourceUpdate>);

constexpr std::size_t kBlocks = 8;
constexpr std::size_t kBlockBytes = 150000;

unsigned char byte_of(std::size_t block, std::size_t at, unsigned generation = 0) {
    return static_cast<unsigned char>((at * 2654435761u + block * 97 + generation * 13) >> 16);
}

void write_block(unsigned char* to, std::size_t block, unsigned generation = 0) {
    for (std::size_t i = 0; i < kBlockBytes; ++i) to[i] = byte_of(block, i, generation);
}

bool is_block(const void* memory, std::size_t block, unsigned generation = 0) {
    const auto* at = static_cast<const unsigned char*>(memory);
    for (std::size_t i = 0; i < kBlockBytes; ++i) {
        if (at[i] != byte_of(block, i, generation)) return false;
    }
    return true;
}

sh::Device open_device() {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.page_bytes = 4096;
    options.budget_bytes = 640 * 1024;
    return sh::Device("host", options);
}

std::vector<sh_block> register_model(sh::Runtime& runtime, unsigned char* memory, std::uint32_t flags = 0) {
    for (std::size_t i = 0; i < kBlocks; ++i) write_block(memory + i * kBlockBytes, i);
    return register_in_a_row(runtime, memory, kBlocks, kBlockBytes, flags);
}

void streams_a_model(const sh::Device& device) {
    sh::PinnedMemory memory(device, kBlocks * kBlockBytes);
    sh::Stream stream(device);
    sh::Runtime runtime(device);
    const std::vector<sh_block> blocks = register_model(runtime, static_cast<unsigned char*>(memory.data()));

    std::vector<sh_use> uses(blocks.size(), sh_use(SH_USE_INIT));
    for (std::size_t i = 0; i < blocks.size(); ++i) uses[i].block = blocks[i];
    runtime.set_schedule(uses);
    const sh_plan_info plan = runtime.plan();
    CHECK(plan.model_bytes == kBlocks * kBlockBytes && plan.scheduled_blocks == kBlocks);

    for (int n = 0; n < 3; ++n) {
        sh::Step step = runtime.step();
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            sh::View view = runtime.acquire(blocks[i], stream);
            CHECK(view.size() == kBlockBytes && view.block() == blocks[i] && runtime.block_info(blocks[i]).held == 1);
            std::vector<unsigned char> copy(kBlockBytes);
            view.read(0, copy.data(), copy.size());
            CHECK(is_block(copy.data(), i));
        }
        if (n == 1) step.end();
    }
    const sh_runtime_stats stats = runtime.stats();
    CHECK(stats.steps == 3 && stats.acquires == 3 * kBlocks);
    CHECK(runtime.block_info(blocks[0]).held == 0);
    CHECK(device.memory().peak_bytes <= device.memory().budget_bytes);
    stream.synchronize();
    runtime.forget(stream.get());
}

void gives_one_of_several_views_away(sh::Runtime& runtime, const std::vector<sh_block>& pair) {
    sh::Views views = runtime.acquire_many(pair, SH_STREAM_HOST);
    views.take(0).release();
    CHECK(runtime.block_info(pair[0]).held == 0 && runtime.block_info(pair[1]).held == 1);
    CHECK(views.size() == 2 && views[0].block == 0 && views[1].block == pair[1]);
    views.take(0).release();  // holds nothing
    {
        const sh::View taken = views.take(1);
        CHECK(taken.block() == pair[1] && is_block(taken.address(), 4));
        views.release();
        CHECK(runtime.block_info(pair[1]).held == 1);
    }
    CHECK(runtime.block_info(pair[1]).held == 0);
}

void guards_release_by_scope(const sh::Device& device) {
    std::vector<unsigned char> memory(kBlocks * kBlockBytes);
    sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
    options.max_held = 3;
    sh::Runtime runtime(device, options);
    const std::vector<sh_block> blocks = register_model(runtime, memory.data());

    try {
        const sh::Step step = runtime.step();
        const sh::View view = runtime.acquire(blocks[2], SH_STREAM_HOST);
        CHECK(is_block(view.address(), 2));
        throw 1;
    } catch (int) {
    }
    CHECK(runtime.block_info(blocks[2]).held == 0);
    { const sh::Step again = runtime.step(); }

    sh::View first = runtime.acquire(blocks[0], SH_STREAM_HOST);
    sh::View second = std::move(first);
    CHECK(runtime.block_info(blocks[0]).held == 1);
    second = runtime.acquire(blocks[1], SH_STREAM_HOST);
    CHECK(runtime.block_info(blocks[0]).held == 0 && runtime.block_info(blocks[1]).held == 1);
    second.release();
    second.release();
    CHECK(runtime.block_info(blocks[1]).held == 0);

    const std::vector<sh_block> pair = {blocks[3], blocks[4]};
    {
        const sh::Views views = runtime.acquire_many(pair, SH_STREAM_HOST);
        CHECK(views.size() == 2 && is_block(views[0].address, 3) && is_block(views[1].address, 4));
    }
    CHECK(runtime.block_info(blocks[3]).held == 0 && runtime.block_info(blocks[4]).held == 0);
    gives_one_of_several_views_away(runtime, pair);
    runtime.synchronize();
    runtime.unregister_blocks(pair);
    CHECK(status_of([&] { runtime.block_info(pair[0]); }) == SH_ERROR_INVALID_HANDLE);
}

void uses_a_block_part_by_part(const sh::Device& device) {
    std::vector<unsigned char> memory(kBlockBytes);
    write_block(memory.data(), 0);
    sh::Runtime runtime(device);
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    segment.bytes = kBlockBytes;
    segment.pointer = memory.data();
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.bytes = kBlockBytes;
    desc.segments = &segment;
    desc.segment_count = 1;
    sh_part_options options = SH_PART_OPTIONS_INIT;
    options.unit_bytes = 1000;
    options.largest_bytes = 40000;
    const std::vector<sh_part> parts = runtime.register_parts(desc, options);
    CHECK(parts.size() == 4 && runtime.register_parts(desc, options, 2).size() == 2);
    std::size_t right = 0;
    for (const sh_part& part : parts) {
        const sh::View view = runtime.acquire(part.block, SH_STREAM_HOST);
        CHECK(part.offset % 1000 == 0 && view.size() == part.bytes);
        right += std::memcmp(view.address(), memory.data() + part.offset, part.bytes) == 0;
    }
    CHECK(right == parts.size());
    options.unit_bytes = 0;
    CHECK(status_of([&] { runtime.register_parts(desc, options); }) == SH_ERROR_INVALID_ARGUMENT);
}

void changes_contents(const sh::Device& device) {
    std::vector<unsigned char> memory(kBlocks * kBlockBytes);
    sh::Runtime runtime(device);
    const std::vector<sh_block> blocks = register_model(runtime, memory.data(), SH_BLOCK_MUTABLE);
    std::uint64_t serial = 0;
    {
        const sh::View view = runtime.acquire(blocks[5], SH_STREAM_HOST);
        serial = view.serial();
    }
    {
        const std::vector<sh_block> changed = {blocks[5]};
        const sh::SourceUpdate update = runtime.update_sources(changed);
        CHECK(status_of([&] { runtime.acquire(blocks[5], SH_STREAM_HOST); }) == SH_ERROR_INVALID_STATE);
        write_block(memory.data() + 5 * kBlockBytes, 5, 1);
    }
    {
        sh::View view = runtime.acquire(blocks[5], SH_STREAM_HOST);
        CHECK(is_block(view.address(), 5, 1) && view.serial() > serial);
        write_block(static_cast<unsigned char*>(view.address()), 5, 2);
        view.mark_dirty();
    }
    const std::vector<sh_block> none;
    runtime.write_back(none);
    runtime.write_back_all();
    CHECK(is_block(memory.data() + 5 * kBlockBytes, 5, 2));
    CHECK(runtime.stats().write_backs == 1);
    std::vector<unsigned char> other(kBlockBytes);
    write_block(other.data(), 5, 3);
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    segment.pointer = other.data();
    segment.bytes = other.size();
    const std::vector<sh_segment> segments = {segment};
    CHECK(status_of([&] { sh::SourceUpdate(runtime.get(), none).replace(blocks[5], segments); }) ==
          SH_ERROR_INVALID_STATE);
    {
        const std::vector<sh_block> changed = {blocks[5]};
        sh::SourceUpdate update = runtime.update_sources(changed);
        update.replace(blocks[5], segments);
        update.end();
    }
    const sh::View view = runtime.acquire(blocks[5], SH_STREAM_HOST);
    CHECK(is_block(view.address(), 5, 3));
    view.verify();
    static_cast<unsigned char*>(view.address())[100] ^= 1;
    CHECK(status_of([&] { view.verify(); }) == SH_ERROR_CHECKSUM);
}

// Scopes, protections and reservations end on every path, including exceptions.
void residency_ends_by_scope(const sh::Device& device) {
    std::vector<unsigned char> memory(kBlocks * kBlockBytes), others(kBlocks * kBlockBytes);
    sh::Runtime runtime(device), guest(device);
    const std::vector<sh_block> blocks = register_model(runtime, memory.data(), 0);
    const std::vector<sh_block> visiting = register_model(guest, others.data(), 0);
    try {
        sh::Scope outer = runtime.keep_resident();
        const sh::Scope inner = runtime.keep_resident();
        outer.end();
        const sh::Scope protection = runtime.protect(blocks);
        const sh::Scope reservation = runtime.reserve(3 * 4096, SH_PRIORITY_SECONDARY);
        sh_guest_options options = SH_GUEST_OPTIONS_INIT;
        options.flags = SH_GUEST_SHRINK;
        const sh::Scope visit = runtime.as_guest(guest, options);
        CHECK(runtime.block_info(blocks[0]).protections == 1);
        CHECK(device.memory().reserved_bytes == 3 * 4096 && device.memory().guest_bytes > 0);
        const sh::View view = guest.acquire(visiting[2], SH_STREAM_HOST);
        CHECK(is_block(view.address(), 2, 0));
        throw std::runtime_error("an engine fails");
    } catch (const std::runtime_error&) {
    }
    CHECK(runtime.block_info(blocks[0]).protections == 0);
    CHECK(device.memory().reserved_bytes == 0 && device.memory().guest_bytes == 0 &&
          device.memory().protected_bytes == 0);
    CHECK(guest.stats().held_bytes == 0);
    CHECK(status_of([&] { runtime.reserve(); }) == SH_ERROR_INVALID_STATE);
    {
        sh::Scope reservation = runtime.reserve(4096);
        reservation = runtime.reserve(2 * 4096);  // the earlier reservation is replaced, and its owner ends nothing
        CHECK(device.memory().reserved_bytes == 2 * 4096);
        sh::Scope moved = std::move(reservation);
        sh::Scope& same = moved;
        moved = std::move(same);
        CHECK(device.memory().reserved_bytes == 2 * 4096);
        moved = std::move(reservation);  // nothing
        CHECK(device.memory().reserved_bytes == 0);
    }
    { const sh::View view = runtime.acquire(blocks[1], SH_STREAM_HOST); }
    CHECK(runtime.stats().held_bytes > 0 && runtime.trim() == 0);
    runtime.set_pressure(nullptr, nullptr);
}

void owners_hand_on(sh::Device device) {
    sh::Device second("host");
    CHECK(second.get() == device.get());
    sh::Runtime runtime(second);
    sh_runtime* const raw = runtime.release();
    runtime = sh::Runtime(raw);
    CHECK(runtime.get() == raw && device.memory().runtime_count == 1);
    runtime = sh::Runtime(device);
    CHECK(status_of([&] { sh::check(sh_runtime_synchronize(raw)); }) == SH_ERROR_INVALID_HANDLE);
    sh::PinnedMemory memory(device, 4096);
    memory = sh::PinnedMemory(device, 8192);
    CHECK(memory.size() == 8192 && memory.data() != nullptr);
    const sh::PinnedMemory taken = std::move(memory);
    CHECK(taken.size() == 8192 && memory.size() == 0 && memory.data() == nullptr);
    sh::Stream stream(device);
    stream = sh::Stream(device);
    bool ran = false;
    stream.launch([](void* seen) { *static_cast<bool*>(seen) = true; }, &ran, -1);
    stream.synchronize();
    CHECK(ran);
}

}  // namespace

int main() {
    CHECK(status_of([] { sh::Device nowhere("no-such-backend"); }) == SH_ERROR_NOT_FOUND);
    try {
        sh::Device device = open_device();
        CHECK(device.capabilities().page_bytes == 4096 && device.clock_ns() > 0);
        bool host_found = false;
        for (const sh_backend_info& info : sh::backends()) host_found |= std::string(info.name) == "host";
        CHECK(host_found);
        streams_a_model(device);
        guards_release_by_scope(device);
        uses_a_block_part_by_part(device);
        changes_contents(device);
        residency_ends_by_scope(device);
        owners_hand_on(std::move(device));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "unexpected: %s\n", error.what());
        return 1;
    }
    return failed_checks != 0;
}
