// What the parts of a load cost on the route of their source: how many copies the device makes, of which bytes, and
// which events they wait for.
#include "core/movement/load_routes.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "core/memory/registry.h"
#include "plugins/backends.h"

namespace stagehand::test {
namespace {

using core::Load;
using core::LoadRoutes;
using core::Registry;
using core::Unit;

constexpr uint64_t kRoutesPage = 4096;
constexpr size_t kManySmall = 17;  // so many small copies are left to the workers
constexpr sh_stream kCopies = 5;

struct Copy {
    uint64_t to = 0, bytes = 0;
    const char* from = nullptr;
    bool operator==(const Copy&) const = default;
};

// The commands that the backend got. It takes them without doing anything.
std::vector<Copy> copies;
std::vector<sh_backend_event> waited_for;
const char *pinned_begin, *pinned_end;

sh_status copy(sh_backend_device*, sh_stream stream, uint64_t to, const void* from, uint64_t bytes) {
    EXPECT_EQ(stream, kCopies);
    copies.push_back({to, bytes, static_cast<const char*>(from)});
    return SH_OK;
}

sh_status wait(sh_backend_device*, sh_stream stream, sh_backend_event event) {
    EXPECT_EQ(stream, kCopies);
    waited_for.push_back(event);
    return SH_OK;
}

sh_status is_pinned(sh_backend_device*, const void* memory, uint64_t bytes, uint32_t* out_pinned) {
    const char* const begin = static_cast<const char*>(memory);
    *out_pinned = begin >= pinned_begin && begin + bytes <= pinned_end;
    return SH_OK;
}

class LoadRoutesTest : public testing::Test {
protected:
    void SetUp() override {
        const sh_backend* host = nullptr;
        std::string path;
        ASSERT_TRUE(plugins::find_backend("host", nullptr, &host, &path).ok());
        table_ = *host;
        table_.copy_to_device = copy;
        table_.stream_wait_event = wait;
        table_.host_is_pinned = is_pinned;
        sh_backend_device* device = nullptr;
        sh_backend_device_info info = {};
        info.struct_size = sizeof info;
        ASSERT_EQ(host->device_open(0, "capacity=1MiB", &device, &info), SH_OK);
        device_ = std::make_unique<BackendDevice>(table_, device, info);
        registry_ = std::make_unique<Registry>(*device_, kRoutesPage, 0, 1);
        carrier_ = std::make_unique<transfer::StraightCarrier>(*device_);
        routes_ = std::make_unique<LoadRoutes>(*device_, *registry_, *carrier_);
        pinned_begin = pinned_.data();
        pinned_end = pinned_begin + pinned_.size();
    }

    sh_segment segment(char* memory, uint64_t offset, uint64_t bytes) {
        sh_segment from = SH_SEGMENT_INIT;
        from.kind = SH_SOURCE_POINTER;
        from.pointer = memory;
        from.offset = offset;
        from.bytes = bytes;
        return from;
    }
    struct Spec {
        uint64_t bytes = 0;
        std::vector<sh_segment> segments;
    };
    // Registers blocks. Returns the unit of the first.
    Unit& add(const std::vector<Spec>& specs) {
        std::vector<sh_block_desc> descs;
        for (const Spec& spec : specs) {
            descs.push_back(SH_BLOCK_DESC_INIT);
            descs.back().bytes = spec.bytes;
            descs.back().segments = spec.segments.data();
            descs.back().segment_count = spec.segments.size();
        }
        std::vector<sh_block> ids(specs.size());
        const Status status = registry_->add(descs, {}, 8, true, ids.data());
        EXPECT_TRUE(status.ok()) << status.text();
        return registry_->unit(registry_->find(ids[0])->unit);
    }
    void begin(std::vector<sh_backend_event> events = {}) {
        copies.clear();
        waited_for.clear();
        load_.clear();
        load_.waits = std::move(events);
        routes_->begin(&load_);
    }
    void issue() {
        ASSERT_TRUE(routes_->issue_straight(kCopies).ok());
        ASSERT_TRUE(LoadRoutes::issue_rest(*device_, kCopies, &load_).ok());
    }
    // What the load has cost until now.
    void expect_copied(uint64_t commands, uint64_t bytes) {
        EXPECT_EQ(load_.copied.commands, commands);
        EXPECT_EQ(load_.copied.bytes, bytes);
        EXPECT_EQ(copies.size(), commands);
    }

    sh_backend table_ = {};
    std::unique_ptr<BackendDevice> device_;
    std::unique_ptr<Registry> registry_;
    std::unique_ptr<transfer::Carrier> carrier_;
    std::unique_ptr<LoadRoutes> routes_;
    Load load_;
    std::vector<char> pinned_ = std::vector<char>(16 * kRoutesPage), pageable_ = pinned_;
};

TEST_F(LoadRoutesTest, pinned_memory_takes_one_copy_of_the_asked_part) {
    Unit& unit = add({{5 * kRoutesPage, {segment(pinned_.data(), 0, 5 * kRoutesPage)}}});
    begin();
    routes_->add(unit, kRoutesPage, 4 * kRoutesPage, {});
    issue();
    expect_copied(1, 3 * kRoutesPage);
    EXPECT_EQ(copies[0], (Copy{unit.address + kRoutesPage, 3 * kRoutesPage, pinned_.data() + kRoutesPage}));
    EXPECT_TRUE(load_.staged.extents.empty());
    EXPECT_TRUE(load_.rest.empty());
}

TEST_F(LoadRoutesTest, pageable_memory_takes_no_copy_here_and_is_left_to_the_workers) {
    char* const memory = pageable_.data();
    Unit& unit = add({{5 * kRoutesPage,
                       {segment(memory, 0, kRoutesPage), segment(memory, kRoutesPage, 2 * kRoutesPage),
                        segment(memory, 3 * kRoutesPage, 2 * kRoutesPage)}}});
    begin({7});
    routes_->add(unit, kRoutesPage + 10, 3 * kRoutesPage, {0, 1});
    issue();
    expect_copied(0, 0);
    EXPECT_TRUE(waited_for.empty()) << "the workers wait, before their own copies";
    ASSERT_EQ(load_.staged.extents.size(), 1u) << "not of the segments that end or begin where the part does";
    const transfer::StagedExtent& extent = load_.staged.extents[0];
    EXPECT_EQ(extent.source->pointer, memory);
    EXPECT_EQ(extent.source_offset, 10u);
    EXPECT_EQ(extent.device_address, unit.address + kRoutesPage + 10);
    EXPECT_EQ(extent.bytes, 2 * kRoutesPage - 10);
    EXPECT_EQ(extent.waits.count, 1u);
}

TEST_F(LoadRoutesTest, neighbours_in_pinned_memory_share_a_copy_and_others_do_not) {
    char* const memory = pinned_.data();
    Unit& unit =
        add({{300, {segment(memory, 0, 100), segment(memory + 100, 100, 100), segment(memory + 250, 200, 100)}}});
    begin();
    routes_->add(unit, 0, 300, {});
    issue();
    expect_copied(2, 300);
    EXPECT_EQ(copies[0], (Copy{unit.address, 200, memory}));
    EXPECT_EQ(copies[1], (Copy{unit.address + 200, 100, memory + 250}));
}

TEST_F(LoadRoutesTest, each_packed_block_pays_for_the_bytes_that_lie_in_the_part) {
    Unit& unit = add({{1000, {segment(pinned_.data(), 0, 1000)}},
                      {1000, {segment(pageable_.data(), 0, 1000)}},
                      {1000, {segment(pinned_.data() + 5000, 0, 1000)}}});
    ASSERT_EQ(unit.block_count, 3u);
    const auto at = [&](size_t k) {
        return registry_->block(unit.first_block + static_cast<uint32_t>(k)).detail->segments[0].offset;
    };
    begin();
    routes_->add(unit, at(0) + 400, at(2) + 300, {});
    issue();
    expect_copied(2, 600 + 300);
    EXPECT_EQ(copies[0], (Copy{unit.address + at(0) + 400, 600, pinned_.data() + 400}));
    EXPECT_EQ(copies[1], (Copy{unit.address + at(2), 300, pinned_.data() + 5000}));
    ASSERT_EQ(load_.staged.extents.size(), 1u);
    EXPECT_EQ(load_.staged.extents[0].bytes, 1000u);
}

TEST_F(LoadRoutesTest, bytes_without_a_source_cost_their_waits_only) {
    Unit& unit = add({{4 * kRoutesPage, {segment(pinned_.data(), 0, kRoutesPage)}}});
    begin({7, 8, 0});
    routes_->add(unit, 2 * kRoutesPage, 4 * kRoutesPage, {1, 2});
    ASSERT_TRUE(routes_->issue_straight(kCopies).ok());
    EXPECT_TRUE(waited_for.empty()) << "only after all copies";
    ASSERT_TRUE(LoadRoutes::issue_rest(*device_, kCopies, &load_).ok());
    expect_copied(0, 0);
    EXPECT_EQ(waited_for, (std::vector<sh_backend_event>{8}));
}

TEST_F(LoadRoutesTest, an_event_is_waited_for_once_in_the_whole_load) {
    Unit& unit = add({{4 * kRoutesPage, {segment(pinned_.data(), 0, 2 * kRoutesPage)}}});
    begin({7, 8, 9});
    routes_->add(unit, 0, kRoutesPage, {0, 2});
    routes_->add(unit, kRoutesPage, 2 * kRoutesPage, {1, 1});
    routes_->add(unit, 2 * kRoutesPage, 4 * kRoutesPage, {0, 3});
    issue();
    EXPECT_EQ(waited_for, (std::vector<sh_backend_event>{7, 8, 9}));
    expect_copied(2, 2 * kRoutesPage);
}

TEST_F(LoadRoutesTest, many_small_copies_are_left_to_the_workers_and_a_large_one_is_not) {
    std::vector<sh_segment> segments;
    for (size_t k = 0; k < kManySmall; k++) segments.push_back(segment(pinned_.data() + 200 * k, 100 * k, 100));
    Unit& many = add({{100 * kManySmall, segments}});
    for (const bool leaves : {false, true}) {
        begin();
        routes_->add(many, 0, many.bytes, {});
        if (leaves) routes_->leave_small();
        issue();
        expect_copied(leaves ? 0 : kManySmall, leaves ? 0 : 100 * kManySmall);
        EXPECT_EQ(load_.staged.extents.size(), leaves ? kManySmall : 0u);
    }
    begin();
    routes_->add(many, 100, many.bytes, {});
    routes_->leave_small();
    issue();
    expect_copied(kManySmall - 1, 100 * (kManySmall - 1));
}

}  // namespace
}  // namespace stagehand::test
