#include "core/occupancy/passage.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/no_throw.h"
#include "core/device/tile_packing.h"

namespace stagehand::core {
namespace {

// Other copies share the link. They come between the pieces: about a millisecond of a PCIe link.
constexpr uint64_t kPiece = uint64_t(64) << 20;

}  // namespace

Passage::~Passage() {
    if (!settle().ok()) ferry_.abandon();
}

Status Passage::open() {
    SH_TRY(to_host_.open());
    return to_device_.open();
}

// --- To the host ---

Status Passage::leave(std::span<Extent* const> extents, transfer::HostFill& fill) {
    first_ = count_ = 0;
    return attempt([&] { return empty_all(extents, fill); });
}

Status Passage::empty_all(std::span<Extent* const> extents, transfer::HostFill& fill) {
    for (Extent* const extent : extents) {
        if (extent->leaving != Leaving::stage) continue;
        for (Handle& handle : extent->handles()) {
            if (!handle.filled) continue;
            if (count_ == kAhead) SH_TRY(finish_oldest_departure());
            SH_TRY(copy_out(*extent, handle, fill));
        }
    }
    while (count_) SH_TRY(finish_oldest_departure());
    return Status();
}

Status Passage::copy_out(Extent& extent, Handle& handle, transfer::HostFill& fill) {
    const std::span<Page> pages = extent.pages_of(handle);
    if (std::none_of(pages.begin(), pages.end(), is_to_leave)) return finish_departure({&extent, &handle});
    // Until the copies have ended, host memory has neither the old contents nor the new ones.
    for (Page& page : pages)
        if (is_to_leave(page)) page.on_host = page.same = false;
    SH_TRY(choose_packing(extent, pages, fill));
    SH_TRY(in_pieces(pages, is_to_leave, [&](const Page& first, uint64_t bytes) {
        if (first.packed) return copy_packed(to_host_, extent, first, bytes);
        bool reached = true;
        if (extent.host().data()) SH_TRY(fill.wait_for(extent.host(), first.place + bytes, &reached));
        if (extent.file() || !reached) return carry(extent, first, bytes, true);
        return to_host_.copy(extent.address() + first.offset, extent.host_at(first), bytes);
    }));
    return note_end({&extent, &handle}, to_host_);
}

// The headers of packed pages are pinned last. So all of the host memory is waited for.
Status Passage::choose_packing(Extent& extent, std::span<Page> pages, transfer::HostFill& fill) {
    const auto is_packable = [&](const Page& page) { return is_to_leave(page) && extent.may_be_packed(page); };
    bool packed = std::any_of(pages.begin(), pages.end(), is_packable) && packs_.value_or(false);
    if (packed) SH_TRY(fill.wait_for(extent.host(), extent.host_end(), &packed));
    for (Page& page : pages)
        if (is_to_leave(page)) page.packed = packed && is_packable(page) ? extent.packs_as() : 0;
    return Status();
}

bool Passage::packs() {
    if (packs_) return *packs_;
    const Status status = no_throw([&] {
        SH_TRY(try_packing(device_, to_host_.stream()));
        SH_TRY(to_host_.get_ready_to_pack());
        return to_device_.get_ready_to_pack();  // what has left packed cannot come back otherwise
    });
    if (status.ok() || status.code() == SH_ERROR_UNSUPPORTED) packs_ = status.ok();
    if (!status.ok()) log_line(SH_LOG_INFO, "contents leave in pauses as they are: %s", status.text());
    return status.ok();
}

Status Passage::finish_oldest_departure() {
    const Move move = moves_[first_];
    SH_TRY(wait_for_oldest());
    return finish_departure(move);
}

Status Passage::finish_departure(const Move& move) {
    move.extent->note_left(*move.handle);
    return move.extent->detach(*move.handle);
}

// --- To the device ---

Status Passage::come_back(std::span<Extent* const> extents) {
    std::vector<Move> taken;
    size_t most = 0;
    for (Extent* const extent : extents) most += extent->handles().size();
    taken.reserve(most);
    // A copy that may be under way may use a buffer of the ferry.
    if (ferry_.is_open()) SH_TRY(settle());
    first_ = count_ = 0;
    const Status status = attempt([&] { return fill_all(extents, taken); });
    if (!status.ok()) {
        if (!is_settled()) return status;  // copies that may be under way write into memory that must stay
        give_back(taken);
        return status;
    }
    for (Extent* const extent : extents)
        for (Handle& handle : extent->handles()) handle.filled = true;
    return Status();
}

Status Passage::fill_all(std::span<Extent* const> extents, std::vector<Move>& taken) {
    for (Extent* const extent : extents)
        for (Handle& handle : extent->handles()) {
            if (handle.filled) continue;
            if (!handle.mapped) taken.push_back({extent, &handle});
            SH_TRY(extent->attach(handle));
            if (extent->leaving == Leaving::drop) continue;
            if (count_ == kAhead) SH_TRY(finish_oldest_arrival());
            SH_TRY(copy_back(*extent, handle));
        }
    while (count_) SH_TRY(finish_oldest_arrival());
    return Status();
}

Status Passage::finish_oldest_arrival() {
    const Move move = moves_[first_];
    SH_TRY(wait_for_oldest());
    if (move.extent->leaving == Leaving::stage) arrived_(*move.extent, move.extent->used_bytes(*move.handle));
    return Status();
}

Status Passage::copy_back(Extent& extent, Handle& handle) {
    const uint64_t address = extent.address();
    if (extent.leaving == Leaving::zero) {
        SH_TRY(device_.fill(to_device_.stream(), address + handle.offset, 0, handle.bytes));
    } else {
        SH_TRY(in_pieces(extent.pages_of(handle), is_to_come, [&](const Page& first, uint64_t bytes) {
            if (first.packed) return copy_packed(to_device_, extent, first, bytes);
            const bool reached = !extent.host().data() || extent.host().pinned_bytes() >= first.place + bytes;
            if (extent.file() || !reached) return carry(extent, first, bytes, false);
            return to_device_.copy(address + first.offset, extent.host_at(first), bytes);
        }));
    }
    return note_end({&extent, &handle}, to_device_);
}

void Passage::give_back(const std::vector<Move>& taken) noexcept {
    for (const Move& move : taken)
        if (const Status kept = move.extent->detach(*move.handle); !kept.ok())
            log_line(SH_LOG_WARNING, "released memory of sh_alloc() stays on the device: %s", kept.text());
}

// --- Both ---

// After a failure, copies may be under way only if the passage is not settled.
template <class Work>
Status Passage::attempt(Work&& work) {
    Status status = no_throw(work);
    if (!status.ok()) (void)end_copies().ok();
    return status;
}

// Calls copy(first page, bytes) for the pages that are wanted, in pieces of neighbours, here and in host memory. A
// piece lies in one registration of the host memory.
template <class Wanted, class Copy>
Status Passage::in_pieces(std::span<const Page> pages, Wanted&& wanted, Copy&& copy) {
    for (size_t i = 0; i < pages.size();) {
        const Page& first = pages[i++];
        if (!wanted(first)) continue;
        uint64_t bytes = first.bytes;
        const auto goes_on = [&](const Page& page) {
            return wanted(page) && page.packed == first.packed && page.place == first.place + bytes &&
                   page.place % Extent::kPieceBytes && bytes + page.bytes <= kPiece;
        };
        while (i < pages.size() && goes_on(pages[i])) bytes += pages[i++].bytes;
        SH_TRY(copy(first, bytes));
        queued_.bytes += bytes;
        queued_.packed += first.packed ? bytes : 0;
    }
    return Status();
}

Status Passage::copy_packed(CopyLane& lane, const Extent& extent, const Page& first, uint64_t bytes) {
    return lane.copy_packed(tiles_at(extent.address() + first.offset, extent.tiles_at(first, bytes)), {});
}

// Moves contents by the ferry, as a part of the move that is queued next.
Status Passage::carry(Extent& extent, const Page& first, uint64_t bytes, bool leaves) {
    SH_TRY(ferry_.open());
    transfer::Ferry::Piece piece;
    piece.leaves = leaves;
    piece.lane = (leaves ? to_host_ : to_device_).stream();
    piece.file = extent.file();
    piece.group = &groups_[(first_ + count_) % kAhead];
    for (uint64_t at = 0; at < bytes; at += piece.bytes) {
        piece.address = extent.address() + first.offset + at;
        piece.bytes = std::min(bytes - at, transfer::Ferry::kPieceBytes);
        piece.offset = first.place + at;
        piece.memory = piece.file ? nullptr : static_cast<char*>(extent.host_at(first)) + at;
        SH_TRY(ferry_.add(piece));
    }
    return Status();
}

Status Passage::note_end(Move move, CopyLane& lane) {
    SH_TRY(lane.end_trip(&move.trip));
    move.lane = &lane;
    move.carried = std::exchange(queued_, {});
    moves_[(first_ + count_++) % kAhead] = move;
    return Status();
}

Status Passage::wait_for_oldest() {
    const uint64_t began = device_.now_ns();
    const Status ended = moves_[first_].lane->wait(moves_[first_].trip);
    wait_ns_ += device_.now_ns() - began;
    SH_TRY(ended);
    if (ferry_.is_open()) SH_TRY(ferry_.wait(groups_[first_]));
    const Carried& moved = moves_[first_].carried;
    carried_.bytes += moved.bytes;
    carried_.packed += moved.packed;
    first_ = (first_ + 1) % kAhead;
    count_--;
    return Status();
}

Status Passage::end_copies() {
    ferry_.cancel();
    first_ = count_ = 0;
    queued_ = {};
    Status status;
    for (CopyLane* const lane : {&to_host_, &to_device_}) {
        if (const Status ended = lane->synchronize(); !ended.ok()) status = ended;
    }
    return status;
}

}  // namespace stagehand::core
