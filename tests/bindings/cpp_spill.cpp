// The owners of spill.hpp: tensors leave and come back, tickets and steps end by scope, and forbidden uses throw an
// exception. Device memory of an engine on the host's backend is any memory of the process.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stagehand/stagehand.hpp>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "owners.hpp"

namespace {

namespace sh = stagehand;

static_assert(!std::is_copy_constructible<sh::Ticket>::value && !std::is_copy_assignable<sh::Ticket>::value, "");
static_assert(!std::is_copy_constructible<sh::Spiller>::value && !std::is_copy_assignable<sh::Spiller>::value, "");
static_assert(!std::is_copy_constructible<sh::SpillStep>::value, "");

constexpr std::size_t kBytes = 8192;

std::uint64_t address_of(std::vector<unsigned char>& memory) {
    return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(memory.data()));
}

bool is_all(const std::vector<unsigned char>& memory, int value) {
    for (const unsigned char byte : memory) {
        if (byte != value) return false;
    }
    return !memory.empty();
}

// A tensor of bytes that all have the same value.
struct Tensor {
    explicit Tensor(int value, std::size_t bytes = kBytes) : memory(bytes, static_cast<unsigned char>(value)) {}

    sh::Ticket save(sh::Spiller& spiller, sh_stream stream, std::uint32_t flags = 0, std::uint64_t key = 0) {
        const std::int64_t size = static_cast<std::int64_t>(memory.size());
        sh_saved_tensor tensor = SH_SAVED_TENSOR_INIT;
        tensor.element_bytes = 1;
        tensor.address = address_of(memory);
        tensor.dimensions = 1;
        tensor.sizes = &size;
        tensor.storage_key = key;
        tensor.used_bytes = 1;
        return spiller.spill(tensor, stream, flags);
    }
    // Overwrites the memory, as an engine does that uses the memory again.
    void overwrite() { std::memset(memory.data(), 0xee, memory.size()); }

    std::vector<unsigned char> memory;
};

// All tensors leave, but for the small ones.
sh_spiller_options keep_nothing() {
    sh_spiller_options options = SH_SPILLER_OPTIONS_INIT;
    options.flags = SH_SPILLER_KEEP_BYTES;
    return options;
}

std::vector<sh_ticket> collect_all(sh::Spiller& spiller, sh_stream stream) {
    std::vector<sh_ticket> tickets;
    spiller.collect(tickets, stream, SH_COLLECT_ALL);
    return tickets;
}

void tensors_leave_and_come_back(const sh::Device& device) {
    sh::Stream stream(device);
    sh::Spiller spiller(device, keep_nothing());
    std::vector<Tensor> tensors;
    std::vector<sh::Ticket> tickets;
    for (int i = 0; i < 100; ++i) {  // more than one call of the C interface names
        tensors.emplace_back(i);
        tickets.push_back(tensors.back().save(spiller, stream.get()));
        CHECK(!tickets.back().stayed());
    }
    std::vector<sh_ticket> gone = {7};
    spiller.collect(gone, stream.get(), SH_COLLECT_ALL);
    CHECK(gone.size() == 101 && gone[0] == 7 && gone[1] == tickets[0].get() && gone[100] == tickets[99].get());
    stream.synchronize();
    for (Tensor& tensor : tensors) tensor.overwrite();
    for (int i = 99; i >= 0; --i) {
        std::vector<unsigned char> memory(tickets[i].info().bytes);
        CHECK(tickets[i].info().state == SH_TICKET_AWAY && memory.size() == kBytes);
        CHECK(tickets[i].restore(address_of(memory), stream.get()) == SH_OK);
        stream.synchronize();
        CHECK(is_all(memory, i));
    }
    const sh_spiller_stats stats = spiller.stats();
    CHECK(stats.saved == 100 && stats.spilled == 100 && stats.restored == 100 && stats.away_bytes == 100 * kBytes);
    tickets.clear();
    CHECK(spiller.stats().away_bytes == 0);
}

void tensors_stay_as_they_are_told(const sh::Device& device) {
    sh::Spiller spiller(device);
    Tensor kept(1), told(2);
    const sh::Ticket stays = kept.save(spiller, SH_STREAM_HOST);
    const sh::Ticket leaves = told.save(spiller, SH_STREAM_HOST, SH_SPILL_NOW);
    CHECK(stays.stayed() && !leaves.stayed());
    CHECK(stays.restore(0, SH_STREAM_HOST) == SH_KEPT && stays.info().state == SH_TICKET_KEPT);
    CHECK(collect_all(spiller, SH_STREAM_HOST) == std::vector<sh_ticket>{leaves.get()});
    std::vector<unsigned char> memory(kBytes);
    CHECK(spiller.restore(leaves.get(), address_of(memory), SH_STREAM_HOST) == SH_OK && is_all(memory, 2));
}

void the_next_tensors_are_prefetched(const sh::Device& device) {
    sh::Stream stream(device);
    sh::Spiller spiller(device, keep_nothing());
    Tensor first(1), second(2);
    const sh::Ticket one = first.save(spiller, stream.get()), two = second.save(spiller, stream.get());
    CHECK(collect_all(spiller, stream.get()).size() == 2);
    const std::vector<sh_ticket> order = {two.get(), one.get()};
    CHECK(spiller.upcoming(8) == order && spiller.upcoming(1) == std::vector<sh_ticket>{two.get()});
    CHECK(spiller.upcoming(0).empty());
    std::vector<unsigned char> memory[2];
    std::vector<std::uint64_t> addresses;
    for (int i = 0; i < 2; ++i) {
        memory[i].resize(spiller.info(order[i]).bytes);
        addresses.push_back(address_of(memory[i]));
    }
    CHECK(status_of([&] {
              spiller.prefetch({order.data(), 1}, addresses, stream.get());
          }) == SH_ERROR_INVALID_ARGUMENT);
    CHECK(spiller.stats().prefetched == 0);
    spiller.prefetch(order, addresses, stream.get());
    CHECK(two.info().state == SH_TICKET_PREFETCHED && two.info().prefetched_address == addresses[0]);
    CHECK(spiller.upcoming(8).empty() && spiller.stats().prefetched == 2);
    CHECK(two.restore(addresses[0], stream.get()) == SH_OK && one.restore(addresses[1], stream.get()) == SH_OK);
    stream.synchronize();
    CHECK(is_all(memory[0], 2) && is_all(memory[1], 1));
}

void tickets_end_by_scope(const sh::Device& device) {
    sh::Spiller spiller(device, keep_nothing());
    Tensor tensor(3);
    {
        sh::Ticket ticket = tensor.save(spiller, SH_STREAM_HOST, 0, 42);
        const sh::Ticket shared = tensor.save(spiller, SH_STREAM_HOST, 0, 42);
        CHECK(ticket.info().copy == shared.info().copy && spiller.stats().shared == 1);
        const sh_ticket name = ticket.get();
        sh::Ticket moved = std::move(ticket);
        CHECK(ticket.get() == 0 && moved.get() == name);
        CHECK(status_of([&] { ticket.info(); }) == SH_ERROR_INVALID_HANDLE);
        CHECK(status_of([&] { ticket.release(); }) == SH_OK);  // there is nothing to release
        moved.release();
        CHECK(moved.get() == 0 && status_of([&] { spiller.info(name); }) == SH_ERROR_INVALID_HANDLE);
        CHECK(collect_all(spiller, SH_STREAM_HOST) == std::vector<sh_ticket>{shared.get()});
        Tensor other(4);
        sh::Ticket assigned = other.save(spiller, SH_STREAM_HOST);
        const sh_ticket before = assigned.get();
        assigned = tensor.save(spiller, SH_STREAM_HOST, 0, 42);
        CHECK(status_of([&] { spiller.info(before); }) == SH_ERROR_INVALID_HANDLE);
        CHECK(assigned.info().copy == shared.info().copy);
        std::thread([&] { assigned.release(); }).join();
        CHECK(spiller.stats().away_bytes == kBytes);
    }
    const sh_spiller_stats stats = spiller.stats();
    CHECK(stats.away_bytes == 0 && stats.leaving_bytes == 0 && stats.pool_bytes + stats.pool_misses > 0);
    CHECK(spiller.trim() == stats.pool_bytes || spiller.stats().pool_bytes == 0);
}

void steps_end_by_scope(const sh::Device& device) {
    const std::string path = "/tmp/stagehand-cpp-spill-" + std::to_string(getpid()) + ".jsonl";
    sh::Spiller spiller(device, keep_nothing());
    sh::Scope lines_of_steps = spiller.telemetry_start(path);
    for (std::uint64_t number = 0; number < 3; ++number) {
        sh::SpillStep step = spiller.step(number);
        CHECK(status_of([&] { spiller.step(9); }) == SH_ERROR_INVALID_STATE);
        const sh::SpillStep moved = std::move(step);
        step.end();  // there is nothing to end
        CHECK(status_of([&] { spiller.step(9); }) == SH_ERROR_INVALID_STATE);
    }
    lines_of_steps.end();
    sh::SpillStep last = spiller.step(3);
    last.end();
    last = spiller.step(4);
    CHECK(status_of([&] { spiller.step(9); }) == SH_ERROR_INVALID_STATE);
    last.end();
    CHECK(spiller.stats().steps == 5);
    std::ifstream file(path);
    std::string line;
    int lines = 0;
    while (std::getline(file, line)) ++lines;
    CHECK(lines == 3);
    std::remove(path.c_str());
}

// Tickets and steps of a destroyed spiller do nothing. They do not reach a spiller that is made later.
void use_after_close(const sh::Device& device) {
    Tensor tensor(5);
    sh::Spiller spiller(device, keep_nothing());
    sh::Ticket ticket = tensor.save(spiller, SH_STREAM_HOST);
    sh::SpillStep step = spiller.step(1);
    {
        const sh::Ticket dropped = tensor.save(spiller, SH_STREAM_HOST);
        spiller = sh::Spiller(device, keep_nothing());
        const sh::Ticket fresh = tensor.save(spiller, SH_STREAM_HOST);
        CHECK(status_of([&] { ticket.info(); }) == SH_ERROR_INVALID_HANDLE);
        CHECK(status_of([&] { ticket.restore(1, SH_STREAM_HOST); }) == SH_ERROR_INVALID_HANDLE);
        CHECK(status_of([&] { ticket.release(); }) == SH_ERROR_INVALID_HANDLE);
        CHECK(status_of([&] { ticket.release(); }) == SH_OK);  // once
        CHECK(status_of([&] { step.end(); }) == SH_ERROR_INVALID_HANDLE);
        CHECK(fresh.info().bytes == kBytes);
    }
    CHECK(spiller.stats().saved == 1);
    sh::Spiller taken(spiller.release());
    CHECK(spiller.get() == nullptr && taken.stats().saved == 1);
}

}  // namespace

int main() {
    try {
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.backend_options = "capacity=64MiB";
        options.budget_bytes = 16 << 20;
        const sh::Device device("host", options);
        tensors_leave_and_come_back(device);
        tensors_stay_as_they_are_told(device);
        the_next_tensors_are_prefetched(device);
        tickets_end_by_scope(device);
        steps_end_by_scope(device);
        use_after_close(device);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "unexpected: %s\n", error.what());
        return 1;
    }
    return failed_checks != 0;
}
