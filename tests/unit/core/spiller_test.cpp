// sh_spill() and sh_restore(): what leaves, what comes back, and when the engine may use its memory again.
#include <thread>

#include "spiller_fixture.h"

namespace stagehand::test {
namespace {

TEST_F(SpillerTest, BytesLeaveAndComeBackThoughTheMemoryIsUsedAgain) {
    create(keeping(0));
    std::vector<Saved> all;
    for (uint64_t seed = 0; seed < 8; seed++) {
        all.push_back(save(seed));
        EXPECT_EQ(all.back().status, SH_OK);
    }
    const std::vector<sh_ticket> gone = collect(SH_COLLECT_ALL);
    ASSERT_EQ(gone.size(), all.size());
    for (size_t i = 0; i < all.size(); i++) EXPECT_EQ(gone[i], all[i].ticket);
    for (Saved& saved : all) give_back(saved);
    for (uint64_t seed = all.size(); seed-- > 0;) {
        EXPECT_EQ(info(all[seed].ticket).state, uint32_t(SH_TICKET_AWAY));
        EXPECT_EQ(restore(all[seed].ticket), contents(seed)) << seed;
    }
    const sh_spiller_stats now = stats();
    EXPECT_EQ(now.saved, 8u);
    EXPECT_EQ(now.spilled, 8u);
    EXPECT_EQ(now.restored, 8u);
    EXPECT_EQ(now.spill_bytes, 8 * kTensor);
    EXPECT_EQ(now.restore_bytes, 8 * kTensor);
    EXPECT_EQ(now.away_bytes, 8 * kTensor);
    EXPECT_EQ(now.away_peak_bytes, 8 * kTensor);
}

TEST_F(SpillerTest, WithoutLimitsOnlyTensorsLeaveThatAreTold) {
    create(SH_SPILLER_OPTIONS_INIT);
    Saved kept = save(1), told = save(2, SH_SPILL_NOW);
    EXPECT_EQ(kept.status, SH_KEPT);
    EXPECT_EQ(told.status, SH_OK);
    EXPECT_EQ(collect(SH_COLLECT_ALL), std::vector<sh_ticket>{told.ticket});
    EXPECT_EQ(sh_restore(spiller_, kept.ticket, 0, stream_), SH_KEPT);
    EXPECT_EQ(info(kept.ticket).state, uint32_t(SH_TICKET_KEPT));
}

TEST_F(SpillerTest, SmallTensorsAndThoseThatTheEngineKeepsStay) {
    create(keeping(0));
    Saved small = save(1, 0, 4095), wanted = save(2, SH_SPILL_KEEP);
    EXPECT_EQ(small.status, SH_KEPT);
    EXPECT_EQ(wanted.status, SH_KEPT);
    const int64_t none = 0;
    sh_saved_tensor empty = SH_SAVED_TENSOR_INIT;
    empty.element_bytes = 4;
    empty.dimensions = 1;
    empty.sizes = &none;
    sh_ticket ticket = 0;
    EXPECT_EQ(sh_spill(spiller_, &empty, stream_, SH_SPILL_NOW, &ticket), SH_KEPT);
    EXPECT_EQ(info(ticket).bytes, 0u);
    EXPECT_TRUE(collect(SH_COLLECT_ALL).empty());
}

TEST_F(SpillerTest, TheOldestTensorsLeaveBeyondTheBytesThatMayStay) {
    create(keeping(3 * kTensor));
    std::vector<Saved> all;
    for (uint64_t seed = 0; seed < 5; seed++) all.push_back(save(seed));
    EXPECT_EQ(all[3].status, SH_KEPT) << "older ones leave";
    EXPECT_EQ(collect(SH_COLLECT_ALL), (std::vector<sh_ticket>{all[0].ticket, all[1].ticket}));
    EXPECT_EQ(stats().kept_bytes, 3 * kTensor);
    EXPECT_EQ(stats().away_bytes, 2 * kTensor);
}

TEST_F(SpillerTest, WatermarksHaveHysteresis) {
    sh_spiller_options options = SH_SPILLER_OPTIONS_INIT;
    options.high_watermark_bytes = 10 * kTensor;
    options.low_watermark_bytes = 6 * kTensor;
    create(options);
    std::vector<Saved> all;
    const auto at = [&](uint64_t used_tensors) {
        all.push_back(save(all.size(), 0, kTensor, used_tensors * kTensor));
        return collect(SH_COLLECT_ALL).size();
    };
    for (uint64_t used = 1; used <= 10; used++) EXPECT_EQ(at(used), 0u) << used;
    EXPECT_EQ(at(11), 5u) << "down to the low mark";
    EXPECT_EQ(at(7), 1u) << "it goes on above the low mark";
    EXPECT_EQ(at(6), 0u);
    EXPECT_EQ(at(10), 0u) << "it ended at the low mark";
    EXPECT_EQ(at(12), 6u);
    EXPECT_EQ(stats().used_peak_bytes, 12 * kTensor);
}

TEST_F(SpillerTest, CopiesInFlightAreBounded) {
    sh_spiller_options options = keeping(0);
    options.to_host_copies = 1;
    create(options, "capacity=64MiB;bandwidth=50MB/s");
    StreamGate gate(device_, stream_);
    Saved first = save(1);
    EXPECT_TRUE(collect().empty());
    Saved second = save(2);
    EXPECT_EQ(collect(), std::vector<sh_ticket>{first.ticket}) << "the stream waits for the copy before";
    give_back(first);
    EXPECT_EQ(info(second.ticket).state, uint32_t(SH_TICKET_LEAVING));
    gate.open();
    EXPECT_EQ(restore(first.ticket), contents(1));
    EXPECT_GE(stats().stall_count, 1u);
    EXPECT_GT(stats().stall_ns, 0u);
}

// A backward that begins while the copy is under way keeps the tensor: nothing has to come back.
TEST_F(SpillerTest, ATensorThatIsNeededWhileItLeavesStays) {
    create(keeping(0), "capacity=64MiB;bandwidth=20MB/s");
    StreamGate gate(device_, stream_);
    Saved saved = save(1);
    EXPECT_EQ(sh_restore(spiller_, saved.ticket, 0, stream_), SH_KEPT);
    EXPECT_TRUE(collect(SH_COLLECT_ALL).empty());
    gate.open();
    // The stream waits for the copy before the memory is used again.
    SUCCEEDS(sh_ticket_release(spiller_, saved.ticket));
    give_back(saved);
    SUCCEEDS(sh_stream_synchronize(device_, stream_));
    EXPECT_EQ(stats().kept_bytes, 0u);
}

TEST_F(SpillerTest, ViewsOfAStorageShareOneCopy) {
    create(keeping(0));
    EngineMemory memory(kTensor);
    memory.bytes() = contents(3);
    std::vector<sh_ticket> tickets(10);
    for (size_t i = 0; i < tickets.size(); i++) {
        const int64_t sizes[] = {64, 32};
        const int64_t strides[] = {512, 1};
        sh_saved_tensor view = SH_SAVED_TENSOR_INIT;
        view.element_bytes = 2;
        view.address = memory.address() + 64 * (i % 4);
        view.dimensions = 2;
        view.sizes = sizes;
        view.strides = strides;
        view.storage_address = memory.address();
        view.storage_bytes = kTensor;
        view.storage_key = 42;
        view.used_bytes = 1;
        EXPECT_EQ(sh_spill(spiller_, &view, stream_, 0, &tickets[i]), SH_OK);
        EXPECT_EQ(info(tickets[i]).copy, info(tickets[0]).copy);
        EXPECT_EQ(info(tickets[i]).offset, 64 * (i % 4));
        EXPECT_EQ(info(tickets[i]).bytes, kTensor);
    }
    EXPECT_EQ(collect(SH_COLLECT_ALL).size(), tickets.size());
    EXPECT_EQ(stats().spill_bytes, kTensor);
    EXPECT_EQ(stats().shared, 9u);
    give_back(memory);
    EXPECT_EQ(restore(tickets[5]), contents(3));
    // A view that comes when the copy has left needs no copy either.
    sh_ticket late = 0;
    EXPECT_EQ(spill(memory.address(), kTensor, 0, &late, 42), SH_OK);
    EXPECT_EQ(collect(), std::vector<sh_ticket>{late});
    EXPECT_EQ(restore(late), contents(3));
    for (const sh_ticket ticket : tickets) SUCCEEDS(sh_ticket_release(spiller_, ticket));
    EXPECT_EQ(restore(late), contents(3));
    SUCCEEDS(sh_ticket_release(spiller_, late));
    EXPECT_EQ(stats().away_bytes, 0u);
    // Nothing is left of the key: the same key now means a new copy.
    EXPECT_EQ(spill(memory.address(), kTensor, 0, &late, 42), SH_OK);
    EXPECT_EQ(stats().spill_bytes, 2 * kTensor);
}

TEST_F(SpillerTest, ASmallViewOfALargeStorageTakesItsOwnBytesOnly) {
    create(keeping(0));
    EngineMemory memory(1 << 20);
    memory.bytes() = contents(4, 1 << 20);
    const int64_t sizes[] = {16, 64};
    const int64_t strides[] = {-512, 1};
    sh_saved_tensor view = SH_SAVED_TENSOR_INIT;
    view.element_bytes = 1;
    view.address = memory.address() + 100'000;
    view.dimensions = 2;
    view.sizes = sizes;
    view.strides = strides;
    view.storage_address = memory.address();
    view.storage_bytes = 1 << 20;
    view.used_bytes = 1;
    sh_ticket ticket = 0;
    EXPECT_EQ(sh_spill(spiller_, &view, stream_, 0, &ticket), SH_OK);
    const uint64_t bytes = 15 * 512 + 64;
    EXPECT_EQ(info(ticket).bytes, bytes);
    EXPECT_EQ(info(ticket).offset, 15u * 512);
    collect(SH_COLLECT_ALL);
    const std::vector<uint8_t> whole = contents(4, 1 << 20);
    const auto begin = whole.begin() + 100'000 - 15 * 512;
    give_back(memory);
    EXPECT_EQ(restore(ticket, bytes), std::vector<uint8_t>(begin, begin + static_cast<ptrdiff_t>(bytes)));
}

TEST_F(SpillerTest, UpcomingTicketsFollowTheOrderOfTheLastStep) {
    sh_spiller_options options = keeping(0);
    options.to_device_copies = 3;
    create(options);
    const std::vector<size_t> order = {2, 0, 3, 1};
    for (int step = 0; step < 3; step++) {
        SUCCEEDS(sh_spiller_begin_step(spiller_, static_cast<uint64_t>(step)));
        std::vector<Saved> all;
        for (uint64_t seed = 0; seed < 4; seed++) all.push_back(save(seed));
        collect(SH_COLLECT_ALL);
        sh_ticket next[8] = {};
        uint64_t count = 0;
        SUCCEEDS(sh_spiller_get_upcoming(spiller_, 0, next, 8, &count));
        ASSERT_EQ(count, 3u) << "the bound on copies";
        for (size_t i = 0; i < 3; i++) EXPECT_EQ(next[i], all[step ? order[i] : 3 - i].ticket) << step << " " << i;
        for (const size_t i : order) EXPECT_EQ(restore(all[i].ticket), contents(i));
        SUCCEEDS(sh_spiller_get_upcoming(spiller_, 0, next, 8, &count));
        EXPECT_EQ(count, 0u);
        for (Saved& saved : all) SUCCEEDS(sh_ticket_release(spiller_, saved.ticket));
        SUCCEEDS(sh_spiller_end_step(spiller_));
        // A validation between steps saves and restores nothing, and changes nothing.
        SUCCEEDS(sh_spiller_begin_step(spiller_, 100));
        Saved validation = save(9);
        SUCCEEDS(sh_ticket_release(spiller_, validation.ticket));
        SUCCEEDS(sh_spiller_end_step(spiller_));
    }
}

TEST_F(SpillerTest, TicketsOutliveTheirStep) {
    create(keeping(0));
    SUCCEEDS(sh_spiller_begin_step(spiller_, 1));
    Saved saved = save(1);
    SUCCEEDS(sh_spiller_end_step(spiller_));
    collect(SH_COLLECT_ALL);
    EXPECT_EQ(restore(saved.ticket), contents(1));
    SUCCEEDS(sh_ticket_release(spiller_, saved.ticket));
}

// A call without room for the tickets has made another stream wait. Who is told of them later waits, too.
TEST_F(SpillerTest, WhoIsToldOfATicketWaitsForItsCopy) {
    create(keeping(0), "capacity=64MiB;bandwidth=2MB/s");
    Saved saved = save(1), shared = save(2);
    uint64_t count = 1;
    SUCCEEDS(sh_spiller_collect(spiller_, stream_, SH_COLLECT_ALL, nullptr, 0, &count));
    EXPECT_EQ(count, 0u);
    sh_ticket tickets[4] = {};
    SUCCEEDS(sh_spiller_collect(spiller_, SH_STREAM_HOST, 0, tickets, 4, &count));
    ASSERT_EQ(count, 2u);
    for (Saved* one : {&saved, &shared}) std::ranges::fill(one->memory->bytes(), uint8_t{0});
    EXPECT_EQ(restore(saved.ticket), contents(1));
    EXPECT_EQ(restore(shared.ticket), contents(2));
    // So does who releases a ticket that was never named.
    Saved unnamed = save(3);
    SUCCEEDS(sh_spiller_collect(spiller_, stream_, SH_COLLECT_ALL, nullptr, 0, &count));
    const uint64_t stalls = stats().stall_count;
    SUCCEEDS(sh_ticket_release(spiller_, unnamed.ticket));
    EXPECT_GT(stats().stall_count, stalls);
}

TEST_F(SpillerTest, ASharedCopyStaysIfOneOfItsTicketsHasTo) {
    create(keeping(0));
    StreamGate gate(device_, stream_);
    EngineMemory memory(kTensor);
    sh_ticket first = 0, second = 0;
    EXPECT_EQ(spill(memory.address(), kTensor, 0, &first, 5), SH_OK);
    EXPECT_EQ(spill(memory.address(), kTensor, SH_SPILL_KEEP, &second, 5), SH_KEPT);
    EXPECT_TRUE(collect(SH_COLLECT_ALL).empty());
    EXPECT_EQ(info(first).state, uint32_t(SH_TICKET_KEPT));
}

TEST_F(SpillerTest, CollectNamesWhatDoesNotFitTheNextTime) {
    create(keeping(0));
    std::vector<Saved> all;
    for (uint64_t seed = 0; seed < 5; seed++) all.push_back(save(seed));
    sh_ticket tickets[3] = {};
    uint64_t count = 0;
    SUCCEEDS(sh_spiller_collect(spiller_, stream_, SH_COLLECT_ALL, tickets, 3, &count));
    EXPECT_EQ(count, 3u);
    EXPECT_EQ(collect(), (std::vector<sh_ticket>{all[3].ticket, all[4].ticket}));
}

TEST_F(SpillerTest, ChecksumsFindOverwrittenMemory) {
    sh_spiller_options options = keeping(0);
    options.flags |= SH_SPILLER_CHECKSUMS;
    create(options);
    Saved saved = save(1), next = save(2);
    collect(SH_COLLECT_ALL);
    EXPECT_EQ(restore(saved.ticket), contents(1));
    // The engine writes to memory that it gave for a prefetch. The copy has ended, because the next one has.
    EngineMemory memory(kTensor), after(kTensor);
    const uint64_t address = memory.address(), addresses[] = {address, after.address()};
    const sh_ticket tickets[] = {saved.ticket, next.ticket};
    SUCCEEDS(sh_prefetch_spilled(spiller_, tickets, addresses, 2, stream_));
    SUCCEEDS(sh_restore(spiller_, next.ticket, after.address(), SH_STREAM_HOST));
    EXPECT_EQ(memory.bytes(), contents(1));
    memory.bytes()[17] ^= 1;
    EXPECT_REFUSED(sh_restore(spiller_, saved.ticket, address, stream_), SH_ERROR_CHECKSUM,
                   "device memory was overwritten");
}

}  // namespace
}  // namespace stagehand::test
