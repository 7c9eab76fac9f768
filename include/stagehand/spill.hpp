// C++ owners for saved tensors that leave the device: spillers, their tickets and their steps. stagehand.hpp includes
// this file.
#ifndef STAGEHAND_SPILL_HPP
#define STAGEHAND_SPILL_HPP

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "device.hpp"
#include "error.hpp"
#include "scope.hpp"

namespace stagehand {
inline namespace abi0 {

// A saved tensor. The destructor ends the ticket. The engine may give back the memory of the tensor and of its prefetch
// then, in the order of the streams of these calls. It may not if the release fails with SH_ERROR_DEVICE_LOST. Only
// release() reports this, and the destructor does not.
//
// The destructor does nothing if the spiller is gone, because all tickets of a spiller end with it. Other methods throw
// SH_ERROR_INVALID_HANDLE then.
class Ticket {
public:
    // Takes ownership of the ticket.
    Ticket(sh_spiller* spiller, sh_ticket ticket, bool stayed = false) noexcept
        : spiller_(spiller), ticket_(ticket), stayed_(stayed) {}
    Ticket(Ticket&& other) noexcept
        : spiller_(std::exchange(other.spiller_, nullptr)),
          ticket_(std::exchange(other.ticket_, sh_ticket(0))),
          stayed_(other.stayed_) {}
    Ticket& operator=(Ticket&& other) noexcept {
        if (this != &other) {
            drop();
            spiller_ = std::exchange(other.spiller_, nullptr);
            ticket_ = std::exchange(other.ticket_, sh_ticket(0));
            stayed_ = other.stayed_;
        }
        return *this;
    }
    ~Ticket() { drop(); }

    // 0: this owner holds nothing.
    sh_ticket get() const noexcept { return ticket_; }
    // Returns true if the tensor stayed on the device when it was saved. The tensor may have left since then.
    bool stayed() const noexcept { return stayed_; }
    sh_ticket_info info() const {
        auto info = sh_sized<sh_ticket_info>();
        check(sh_ticket_get_info(spiller_, ticket_, &info));
        return info;
    }

    // Returns SH_OK, or SH_KEPT if the memory of the spill has the bytes. `address` is not used with SH_KEPT.
    sh_status restore(std::uint64_t address, sh_stream stream) const {
        return check(sh_restore(spiller_, ticket_, address, stream));
    }
    // Ends the ticket now. It has ended even if this throws.
    void release() {
        if (sh_spiller* spiller = std::exchange(spiller_, nullptr)) {
            check(sh_ticket_release(spiller, std::exchange(ticket_, sh_ticket(0))));
        }
    }

private:
    void drop() noexcept {
        if (spiller_) ignore(sh_ticket_release(spiller_, ticket_));
    }

    sh_spiller* spiller_;
    sh_ticket ticket_;
    bool stayed_;
};

// A step of a spiller that is under way. The destructor ends the step.
class SpillStep {
public:
    SpillStep(sh_spiller* spiller, std::uint64_t step) {
        check(sh_spiller_begin_step(spiller, step));
        spiller_ = spiller;
    }
    SpillStep(SpillStep&& other) noexcept : spiller_(std::exchange(other.spiller_, nullptr)) {}
    SpillStep& operator=(SpillStep&& other) noexcept {
        if (this != &other) {
            drop();
            spiller_ = std::exchange(other.spiller_, nullptr);
        }
        return *this;
    }
    ~SpillStep() { drop(); }

    // Ends the step now. The step has ended even if this throws.
    void end() {
        if (sh_spiller* spiller = std::exchange(spiller_, nullptr)) check(sh_spiller_end_step(spiller));
    }

private:
    void drop() noexcept {
        if (spiller_) ignore(sh_spiller_end_step(spiller_));
    }

    sh_spiller* spiller_ = nullptr;
};

// The saved tensors of one training job. The destructor waits for copies in flight, and all tickets end.
class Spiller {
public:
    explicit Spiller(const Device& device) { check(sh_spiller_create(device.get(), nullptr, &spiller_)); }
    Spiller(const Device& device, const sh_spiller_options& options) {
        check(sh_spiller_create(device.get(), &options, &spiller_));
    }
    // Takes ownership of a spiller.
    explicit Spiller(sh_spiller* spiller) noexcept : spiller_(spiller) {}
    Spiller(Spiller&& other) noexcept : spiller_(other.release()) {}
    Spiller& operator=(Spiller&& other) noexcept {
        if (this != &other) {
            sh_spiller_destroy(spiller_);
            spiller_ = other.release();
        }
        return *this;
    }
    ~Spiller() { sh_spiller_destroy(spiller_); }

    sh_spiller* get() const noexcept { return spiller_; }
    sh_spiller* release() noexcept { return std::exchange(spiller_, nullptr); }

    // Begins a step. `number` is the engine's number of the step.
    SpillStep step(std::uint64_t number) { return SpillStep(spiller_, number); }

    // `flags`: 0, SH_SPILL_NOW or SH_SPILL_KEEP.
    Ticket spill(const sh_saved_tensor& tensor, sh_stream stream, std::uint32_t flags = 0) {
        sh_ticket ticket = 0;
        const sh_status status = check(sh_spill(spiller_, &tensor, stream, flags, &ticket));
        return Ticket(spiller_, ticket, status == SH_KEPT);
    }
    // Appends the tickets whose device memory is not needed any more to `tickets`, even if this throws. Each ticket is
    // named once. `flags`: 0 or SH_COLLECT_ALL.
    void collect(std::vector<sh_ticket>& tickets, sh_stream stream, std::uint32_t flags = 0) {
        constexpr std::uint64_t most = 64;
        for (std::uint64_t count = most; count == most;) {
            const std::size_t before = tickets.size();
            tickets.resize(before + most);  // before the call, because the call names each ticket only once
            count = 0;
            const sh_status status = sh_spiller_collect(spiller_, stream, flags, &tickets[before], most, &count);
            tickets.resize(before + std::size_t(count));
            check(status);
        }
    }

    sh_ticket_info info(sh_ticket ticket) const {
        auto info = sh_sized<sh_ticket_info>();
        check(sh_ticket_get_info(spiller_, ticket, &info));
        return info;
    }
    // As Ticket::restore().
    sh_status restore(sh_ticket ticket, std::uint64_t address, sh_stream stream) {
        return check(sh_restore(spiller_, ticket, address, stream));
    }
    // Returns the tickets that will be restored next, in order. There are at most `most` of them. With watermarks, the
    // bytes in use on the device tell how many there may be.
    std::vector<sh_ticket> upcoming(std::size_t most, std::uint64_t used_bytes = 0) const {
        std::vector<sh_ticket> tickets(most);
        std::uint64_t count = 0;
        check(sh_spiller_get_upcoming(spiller_, used_bytes, tickets.data(), tickets.size(), &count));
        tickets.resize(std::size_t(count));
        return tickets;
    }
    // Each ticket has one address.
    void prefetch(Span<const sh_ticket> tickets, Span<const std::uint64_t> addresses, sh_stream stream) {
        if (tickets.size() != addresses.size()) {
            throw Error(SH_ERROR_INVALID_ARGUMENT, "prefetch: " + std::to_string(tickets.size()) + " tickets, but " +
                                                       std::to_string(addresses.size()) + " addresses");
        }
        check(sh_prefetch_spilled(spiller_, tickets.data(), addresses.data(), tickets.size(), stream));
    }

    sh_spiller_stats stats() const {
        auto stats = sh_sized<sh_spiller_stats>();
        check(sh_spiller_get_stats(spiller_, &stats));
        return stats;
    }
    // Returns the number of bytes of pinned memory that were freed.
    std::uint64_t trim() {
        std::uint64_t bytes = 0;
        check(sh_spiller_trim(spiller_, &bytes));
        return bytes;
    }
    // A line for each step until the scope ends.
    Scope telemetry_start(const std::string& path) {
        return Scope([&](sh_scope** out) { return sh_telemetry_start(nullptr, spiller_, path.c_str(), out); });
    }

private:
    sh_spiller* spiller_ = nullptr;
};

}  // namespace abi0
}  // namespace stagehand

#endif
