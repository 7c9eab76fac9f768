// Registry: records that come and go, their ids, and the rules for which blocks share a unit and its pages.
#include <malloc.h>

#include <functional>
#include <set>

#include "../../stress/scale.h"
#include "../count_allocations.h"
#include "backend/backend_device.h"
#include "core/memory/contents.h"
#include "core/memory/registry.h"
#include "core/movement/load.h"
#include "engine.h"
#include "plugins/backends.h"

namespace stagehand::test {
namespace {

using core::kNone;
using core::Memory;
using core::Registry;
using core::Unit;

constexpr uint64_t kRegistryPage = 4096;
constexpr uint64_t kPackPages = 8;

// The number and the bytes of reserved address ranges on all devices of this test.
uint64_t ranges, range_bytes;
bool fail_behind_range;  // the allocation that follows the reservation of addresses
const sh_backend* table_below;

sh_status reserve(sh_backend_device* device, uint64_t bytes, uint64_t alignment, uint64_t* address) {
    ranges++;
    range_bytes += bytes;
    const sh_status status = table_below->range_reserve(device, bytes, alignment, address);
    fail_next_allocation = fail_behind_range;
    return status;
}

sh_status give(sh_backend_device* device, uint64_t address, uint64_t bytes) {
    ranges--;
    range_bytes -= bytes;
    return table_below->range_free(device, address, bytes);
}

class RegistryTest : public testing::TestWithParam<bool> {
protected:
    void SetUp() override {
        std::string path;
        ASSERT_TRUE(plugins::find_backend("host", nullptr, &table_below, &path).ok());
        ranges = range_bytes = 0;
        fail_behind_range = false;
        table_ = *table_below;
        table_.range_reserve = reserve;
        table_.range_free = give;
        sh_backend_device* device = nullptr;
        sh_backend_device_info info = {};
        info.struct_size = sizeof info;
        ASSERT_EQ(
            table_below->device_open(0, no_pages() ? "capacity=1MiB;map_pages=0" : "capacity=1MiB", &device, &info),
            SH_OK);
        device_ = std::make_unique<BackendDevice>(table_, device, info);
        registry_ = std::make_unique<Registry>(*device_, kRegistryPage, 0, 7);
    }
    void TearDown() override {
        registry_.reset();
        EXPECT_EQ(ranges, 0u);
        EXPECT_EQ(range_bytes, 0u);
    }
    bool no_pages() const { return GetParam(); }
    // Marks the unit as loaded once.
    void load(Unit& unit) {
        core::EventPool events(*device_);
        core::StreamTable streams(*device_, events);
        core::Ring ring;
        core::Contents contents(*device_, *registry_, ring, streams, events);
        core::Load load;
        contents.take(unit, load, {});
        contents.end_load(unit);
    }

    struct Spec {
        uint64_t bytes = 0;
        uint32_t flags = 0;
    };
    // Registers the blocks by one call.
    uint64_t model_pages() { return (registry_->padding_bytes() + registry_->model_bytes()) / kRegistryPage; }
    std::vector<sh_block> add(const std::vector<Spec>& specs, bool may_reuse = true, sh_status expected = SH_OK) {
        std::vector<sh_segment> segments;
        std::vector<sh_block_desc> descs(specs.size(), SH_BLOCK_DESC_INIT);
        for (const Spec& spec : specs) {
            segments.push_back(SH_SEGMENT_INIT);
            segments.back().kind = expected == SH_OK ? SH_SOURCE_POINTER : SH_SOURCE_FILE;
            segments.back().pointer = bytes_.data();
            segments.back().bytes = spec.bytes;
            segments.back().file = 1 << 20;  // no such descriptor
        }
        for (size_t i = 0; i < specs.size(); i++) {
            descs[i].bytes = specs[i].bytes;
            descs[i].flags = specs[i].flags;
            descs[i].segments = &segments[i];
            descs[i].segment_count = 1;
        }
        std::vector<sh_block> ids(specs.size());
        const Status status = registry_->add(descs, {}, {}, kPackPages, may_reuse, ids.data());
        EXPECT_EQ(status.code(), expected) << status.text();
        if (!status.ok()) ids.clear();
        check();
        return ids;
    }
    std::vector<sh_block> add_one_by_one(const std::vector<Spec>& specs) {
        std::vector<sh_block> ids;
        for (const Spec& spec : specs) ids.push_back(add({spec}).at(0));
        return ids;
    }
    void remove(const std::vector<sh_block>& ids) {
        registry_->remove(ids);
        check();
    }
    const Unit& unit_of(sh_block id) { return registry_->unit(registry_->find(id)->unit); }
    size_t live_units() {
        size_t count = 0;
        for (const Unit& unit : registry_->units()) count += unit.live;
        return count;
    }

    // Checks the invariants: units do not overlap, blocks lie one after the other inside their units, and the sums are
    // right.
    void check() {
        std::set<std::pair<uint64_t, uint64_t>> taken;
        uint64_t pages = 0, bytes = 0, count = 0;
        for (const Unit& unit : registry_->units()) {
            if (!unit.live) {
                EXPECT_EQ(unit.first_block, kNone);
                continue;
            }
            pages += unit.pages;
            if (!no_pages()) taken.insert({unit.address, unit.address + unit.pages * kRegistryPage});
            uint64_t end = unit.address;
            uint32_t blocks = 0;
            for (const core::Block& block : registry_->blocks_of(unit)) {
                EXPECT_EQ(registry_->find(block.id), &block);
                EXPECT_EQ(&registry_->unit(block.unit), &unit);
                EXPECT_GE(block.address, end);
                EXPECT_EQ((block.address - unit.address) % 256, 0u);
                end = block.address + block.bytes;
                bytes += block.bytes;
                blocks++;
            }
            EXPECT_LE(end, unit.address + unit.bytes);
            EXPECT_EQ(blocks, unit.block_count);
            EXPECT_GT(blocks, 0u);
            count += blocks;
        }
        EXPECT_EQ(pages, model_pages());
        EXPECT_EQ(bytes, registry_->model_bytes());
        EXPECT_EQ(count, registry_->block_count());
        uint64_t end = 0;
        for (const auto& [from, to] : taken) {
            EXPECT_GE(from, end);
            end = to;
        }
    }

    std::vector<char> bytes_ = std::vector<char>(64 * kRegistryPage);
    sh_backend table_ = {};
    std::unique_ptr<BackendDevice> device_;
    std::unique_ptr<Registry> registry_;
};

INSTANTIATE_TEST_SUITE_P(Devices, RegistryTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "allocated" : "mapped"; });

TEST_P(RegistryTest, records_of_unregistered_blocks_are_used_again) {
    const std::vector<sh_block> kept = add({{5 * kRegistryPage}});
    std::set<sh_block> seen(kept.begin(), kept.end());
    for (int k = 0; k < 1000; k++) {
        const std::vector<sh_block> ids = add({{3 * kRegistryPage},
                                               {100},
                                               {200, SH_BLOCK_UNORDERED},
                                               {kRegistryPage},
                                               {2 * kRegistryPage, SH_BLOCK_UNORDERED}});
        for (const sh_block id : ids) EXPECT_TRUE(seen.insert(id).second) << "an id was given out twice";
        remove(ids);
        for (const sh_block id : ids) EXPECT_EQ(registry_->find(id), nullptr);
    }
    EXPECT_LE(registry_->blocks().size(), 6u);
    EXPECT_LE(registry_->units().size(), 5u);
    EXPECT_EQ(ranges, no_pages() ? 0u : 1u);
    EXPECT_NE(registry_->find(kept[0]), nullptr);
}

TEST_P(RegistryTest, no_record_is_used_again_while_somebody_may_look_at_it) {
    const std::vector<sh_block> first = add({{3 * kRegistryPage}, {100}});
    const core::Block* const block = registry_->find(first[0]);
    const Unit* const unit = &unit_of(first[0]);
    remove(first);
    const std::vector<sh_block> second = add({{3 * kRegistryPage}, {100}}, false);
    EXPECT_EQ(block->id, 0u);
    EXPECT_FALSE(unit->live);
    add({{3 * kRegistryPage}});
    EXPECT_NE(block->id, 0u);
    EXPECT_TRUE(unit->live);
}

TEST_P(RegistryTest, a_record_is_given_up_before_its_ids_come_round) {
    sh_block first = 0, last = 0;
    for (int k = 0; k < 65535; k++) {
        const sh_block id = add({{3 * kRegistryPage}}).at(0);
        if (k == 0) first = id;
        ASSERT_TRUE(k == 0 || id != first);
        last = id;
        registry_->remove(std::span(&id, 1));
    }
    EXPECT_EQ(registry_->blocks().size(), 1u);
    EXPECT_EQ(last >> 32 & 0xffff, 0xffffu);
    const sh_block next = add({{3 * kRegistryPage}}).at(0);
    EXPECT_NE(next & 0xffffffff, first & 0xffffffff);
    EXPECT_EQ(registry_->find(first), nullptr);
    EXPECT_EQ(registry_->find(last), nullptr);
    EXPECT_EQ(registry_->blocks().size(), 2u);
    EXPECT_EQ(registry_->units().size(), 1u);
}

TEST_P(RegistryTest, addresses_are_freed_if_host_memory_runs_out_behind_them) {
    if (no_pages()) GTEST_SKIP() << "there the addresses come with the memory";
    for (const size_t before : {0, 1, 2, 4, 8}) {  // ranges that the registry knows
        while (ranges < before) add({{kPackPages * kRegistryPage}});
        fail_behind_range = true;
        add({{kPackPages * kRegistryPage}}, true, SH_ERROR_OUT_OF_HOST_MEMORY);
        fail_behind_range = fail_next_allocation = false;
        EXPECT_EQ(ranges, before);
    }
}

TEST_P(RegistryTest, what_failed_leaves_nothing) {
    const std::vector<sh_block> kept = add({{100}, {kRegistryPage / 4, SH_BLOCK_UNORDERED}});
    const Unit& ordered = unit_of(kept[0]);
    const Unit& unordered = unit_of(kept[1]);
    const uint64_t before = range_bytes;
    for (int k = 0; k < 20; k++)
        add({{300, SH_BLOCK_WHOLE}, {200, SH_BLOCK_UNORDERED}, {9 * kRegistryPage}, {7 * kRegistryPage}, {100}}, true,
            SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(live_units(), 2u);
    EXPECT_EQ(ordered.bytes, 100u);
    EXPECT_EQ(ordered.whole, no_pages());
    EXPECT_EQ(unordered.bytes, kRegistryPage / 4);
    EXPECT_EQ(range_bytes, before);
    EXPECT_LE(registry_->blocks().size(), 7u);
    EXPECT_LE(registry_->units().size(), 6u);
    const std::vector<sh_block> more = add({{300}, {200, SH_BLOCK_UNORDERED}});
    EXPECT_EQ(&unit_of(more[0]), &ordered) << "the packs are still open";
    EXPECT_EQ(&unit_of(more[1]), &unordered);
}

// A hundred blocks of an eighth of a page.
TEST_P(RegistryTest, small_blocks_are_packed_alike_together_and_one_by_one) {
    const std::vector<Spec> specs(100, {kRegistryPage / 8});
    add(specs);
    const uint64_t pages = model_pages();
    EXPECT_EQ(pages, 13u);
    registry_ = std::make_unique<Registry>(*device_, kRegistryPage, 0, 8);
    add_one_by_one(specs);
    EXPECT_EQ(model_pages(), pages);
}

TEST_P(RegistryTest, a_large_block_divides_what_is_packed) {
    for (const bool together : {true, false}) {
        registry_ = std::make_unique<Registry>(*device_, kRegistryPage, 0, 8);
        const std::vector<Spec> specs = {
            {100}, {100}, {2 * kRegistryPage}, {100}, {5 * kRegistryPage, SH_BLOCK_UNORDERED}, {100}};
        const std::vector<sh_block> ids = together ? add(specs) : add_one_by_one(specs);
        EXPECT_EQ(&unit_of(ids[0]), &unit_of(ids[1]));
        EXPECT_NE(&unit_of(ids[0]), &unit_of(ids[3])) << "not neighbours in the order";
        EXPECT_EQ(&unit_of(ids[3]), &unit_of(ids[5])) << "what is outside the order does not come between";
        EXPECT_EQ(live_units(), 4u);
    }
}

TEST_P(RegistryTest, blocks_outside_the_order_share_one_page_at_most) {
    for (const bool together : {true, false}) {
        registry_ = std::make_unique<Registry>(*device_, kRegistryPage, 0, 8);
        const std::vector<Spec> specs(10, {kRegistryPage / 2, SH_BLOCK_UNORDERED});
        const std::vector<sh_block> ids = together ? add(specs) : add_one_by_one(specs);
        EXPECT_EQ(live_units(), 5u);
        for (const sh_block id : ids) {
            EXPECT_EQ(unit_of(id).pages, 1u);
            EXPECT_EQ(unit_of(id).block_count, 2u);
            EXPECT_TRUE(unit_of(id).unordered);
        }
        // Beside those of the order, not with them.
        const std::vector<sh_block> mixed = add(
            {{100}, {100, SH_BLOCK_UNORDERED}, {100}, {kRegistryPage, SH_BLOCK_UNORDERED}, {100, SH_BLOCK_UNORDERED}});
        EXPECT_EQ(&unit_of(mixed[0]), &unit_of(mixed[2]));
        EXPECT_EQ(&unit_of(mixed[1]), &unit_of(mixed[4]));
        EXPECT_NE(&unit_of(mixed[0]), &unit_of(mixed[1]));
        EXPECT_EQ(unit_of(mixed[3]).block_count, 1u) << "a page of its own is full";
    }
}

// A unit takes no more blocks once its size is in use.
TEST_P(RegistryTest, a_unit_that_is_in_use_takes_no_more) {
    const std::function<void(Unit&)> uses[] = {
        [](Unit& unit) { unit.memory = Memory::planned; },
        [&](Unit& unit) { load(unit); },
        [](Unit& unit) { unit.held = 1; },
        [](Unit& unit) { unit.bringing = true; },
        [](Unit& unit) { unit.protections = 1; },
        [&](Unit& unit) { registry_->hinder(unit, core::kUpdating, true); },
    };
    for (const auto& use : uses) {
        for (const uint32_t flags : {0u, uint32_t(SH_BLOCK_UNORDERED)}) {
            const sh_block first = add({{100, flags}}).at(0), second = add({{100, flags}}).at(0);
            EXPECT_EQ(registry_->find(first)->unit, registry_->find(second)->unit);
            Unit& unit = registry_->unit(registry_->find(first)->unit);
            use(unit);
            const uint64_t bytes = unit.bytes;
            const sh_block third = add({{100, flags}}).at(0);
            EXPECT_NE(registry_->find(first)->unit, registry_->find(third)->unit);
            EXPECT_EQ(unit.bytes, bytes);
            remove({second});  // nor does it shrink
            EXPECT_EQ(unit.bytes, bytes);
            unit.memory = Memory::none;
            remove({first, third});
        }
    }
}

TEST_P(RegistryTest, what_comes_and_goes_beside_one_that_stays_does_not_use_its_pack_up) {
    const sh_block kept = add({{100}}).at(0);
    for (int k = 0; k < 1000; k++) remove(add({{kRegistryPage}, {100}}));
    EXPECT_EQ(unit_of(kept).bytes, 100u);
    EXPECT_EQ(live_units(), 1u);
    EXPECT_LE(registry_->units().size(), 2u);
}

TEST_P(RegistryTest, gaps_are_what_no_segment_covers) {
    sh_segment segments[2] = {SH_SEGMENT_INIT, SH_SEGMENT_INIT};
    for (sh_segment& segment : segments) {
        segment.kind = SH_SOURCE_POINTER;
        segment.pointer = bytes_.data();
        segment.bytes = 1000;
    }
    segments[0].offset = 3000;  // the later one first
    segments[1].offset = 500;
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.bytes = 3 * kRegistryPage;
    desc.segments = segments;
    desc.segment_count = 2;
    sh_block id = 0;
    ASSERT_TRUE(registry_->add(std::span(&desc, 1), {}, {}, kPackPages, true, &id).ok());
    const uint32_t unit = registry_->find(id)->unit;
    const auto gaps = registry_->gaps_of(unit);
    ASSERT_EQ(gaps.size(), 3u);
    const uint64_t expected[3][3] = {{0, 500, 0}, {1500, 1500, 500}, {4000, 3 * kRegistryPage - 4000, 2000}};
    for (size_t k = 0; k < 3; k++) {
        EXPECT_EQ(gaps[k].offset, expected[k][0]);
        EXPECT_EQ(gaps[k].bytes, expected[k][1]);
        EXPECT_EQ(gaps[k].before, expected[k][2]);
    }
    EXPECT_EQ(registry_->link_bytes(unit), 2000u);
    // Between packed blocks, and where one of them has gone.
    const std::vector<sh_block> packed = add({{100}, {256}, {300}});
    const uint32_t pack = registry_->find(packed[0])->unit;
    EXPECT_EQ(registry_->gaps_of(pack).size(), 1u);
    EXPECT_EQ(registry_->link_bytes(pack), 656u);
    load(registry_->unit(pack));
    remove({packed[1]});
    EXPECT_EQ(registry_->link_bytes(pack), 400u);
    remove({packed[2]});
    EXPECT_EQ(registry_->link_bytes(pack), 100u);
    EXPECT_EQ(registry_->unit(pack).bytes, 812u);
}

// Through the interface: the numbers of records, events and bytes are the same after many blocks came and
// went as after a few.
TEST(Registrations, leave_nothing) {
    std::vector<BlockSpec> specs = equal_blocks(4, 3 * kPage);
    SoloModel model({.budget_bytes = 40 * kPage}, specs, forward(4));
    const sh_stream stream = model.stream();
    std::vector<uint8_t> bytes(4 * kPage, 1);
    uint64_t places = 0;
    const auto cycle = [&](int k) {
        sh_segment segment = SH_SEGMENT_INIT;
        segment.kind = SH_SOURCE_POINTER;
        segment.pointer = bytes.data();
        sh_block_desc descs[3] = {SH_BLOCK_DESC_INIT, SH_BLOCK_DESC_INIT, SH_BLOCK_DESC_INIT};
        sh_segment segments[3] = {segment, segment, segment};
        const uint64_t sizes[3] = {3 * kPage, kPage / 3, 100};
        for (int i = 0; i < 3; i++) {
            segments[i].bytes = descs[i].bytes = sizes[i];
            descs[i].segments = &segments[i];
            descs[i].segment_count = 1;
            descs[i].flags = (k + i) % 3 ? SH_BLOCK_UNORDERED : 0;
        }
        sh_block ids[3];
        SUCCEEDS(sh_register_blocks(model.runtime(), descs, 3, ids));
        for (const sh_block id : ids) places = std::max<uint64_t>(places, (id & 0xffffffff) + 1);
        model.begin_step();
        for (const sh_block id : ids) {
            held_view(model.runtime(), id, stream);
            let_go(model.runtime(), id, stream);
        }
        model.end_step();
        SUCCEEDS(sh_unregister_blocks(model.runtime(), ids, 3));
        auto view = sh_sized<sh_view>();
        for (const sh_block id : ids)
            EXPECT_EQ(sh_acquire(model.runtime(), id, stream, 0, &view), SH_ERROR_INVALID_HANDLE);
    };
    for (int k = 0; k < 100; k++) cycle(k);
    model.synchronize();
    const size_t before = mallinfo2().uordblks;
    for (int k = 0; k < static_cast<int>(shortened(200)); k++) cycle(k);
    model.synchronize();
    EXPECT_LE(places, 7u);
    EXPECT_LT(mallinfo2().uordblks, before + (32 << 10));  // 55 bytes for each block of those
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(4), stream));
}

// A new block that takes the record of an old block inherits neither its place in the order nor its contents in the
// ring.
TEST(Registrations, a_new_block_in_an_old_ones_place_is_itself) {
    SoloModel model({.budget_bytes = 14 * kPage}, equal_blocks(8, 4 * kPage));
    const sh_stream stream = model.stream();
    std::vector<size_t> order = forward(8);
    for (int k = 0; k < 2; k++) SUCCEEDS(model.step(order, stream));
    for (size_t k = 0; k < 16; k++) {
        const size_t at = k * 5 % 8;
        model.begin_step();
        for (size_t n = 0; n < 8; n++) {
            if (n == 4) {  // in the middle of a step
                SUCCEEDS(model.remove(order[at]));
                SUCCEEDS(model.add({k % 2 ? 4 * kPage : 3 * kPage + 17, kOrigins[k % 5],
                                    k % 3 == 0 ? uint32_t(SH_BLOCK_UNORDERED) : 0}));
                order[at] = model.size() - 1;
                EXPECT_LT(model.id(order[at]) & 0xffffffff, 10u);
            }
            SUCCEEDS(model.use(order[n], stream));
        }
        model.end_step();
        SUCCEEDS(model.step(order, stream));
    }
    model.synchronize();
    EXPECT_LE(model.memory().peak_bytes, 14 * kPage);
}

}  // namespace
}  // namespace stagehand::test
