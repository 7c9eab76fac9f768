#include "transfer/lane/lane.h"

#include <utility>

#include "base/log.h"
#include "base/once_more.h"

namespace stagehand::transfer {

Lane& Lane::operator=(Lane&& other) noexcept {
    give_back();
    owner_ = std::exchange(other.owner_, nullptr);
    stream_ = std::exchange(other.stream_, SH_STREAM_HOST);
    direction_ = other.direction_;
    return *this;
}

void Lane::give_back() noexcept {
    if (Lanes* const owner = std::exchange(owner_, nullptr)) owner->give_back(stream_, direction_);
}

Lanes::~Lanes() {
    for (Idle& idle : idle_)
        for (const sh_stream stream : idle.streams) destroy(stream);
}

Status Lanes::lend(Direction direction, Lane* out) {
    sh_stream stream = SH_STREAM_HOST;
    std::lock_guard lock(mutex_);
    Idle& from = idle(direction);
    from.streams.reserve(from.lent + from.streams.size() + 1);
    for (size_t i = from.streams.size(); stream == SH_STREAM_HOST && i-- > 0;) {
        if (!can_be_lent(from.streams[i])) continue;
        stream = from.streams[i];
        from.streams.erase(from.streams.begin() + static_cast<ptrdiff_t>(i));
    }
    if (stream == SH_STREAM_HOST) SH_TRY(device_.stream_create(&stream));
    from.lent++;
    Lane lane;
    lane.owner_ = this;
    lane.stream_ = stream;
    lane.direction_ = direction;
    *out = std::move(lane);
    return Status();
}

// Returns false for a stream that belongs to an abandoned capture of an engine.
bool Lanes::can_be_lent(sh_stream stream) {
    uint32_t capturing = 0;
    return !device_.has_graphs() || (device_.stream_is_capturing(stream, &capturing).ok() && !capturing);
}

void Lanes::give_back(sh_stream stream, Direction direction) noexcept {
    std::lock_guard lock(mutex_);
    idle(direction).lent--;
    idle(direction).streams.push_back(stream);
}

void Lanes::destroy(sh_stream stream) noexcept {
    if (Status status = once_more([&] { return device_.stream_destroy(stream); }); !status.ok())
        log_line(SH_LOG_WARNING, "%s", status.text());
}

void Lanes::set_rate(Direction direction, double bytes_per_ns) {
    std::lock_guard lock(mutex_);
    rates_[static_cast<size_t>(direction)] = bytes_per_ns;
}

double Lanes::rate(Direction direction) const {
    std::lock_guard lock(mutex_);
    return rates_[static_cast<size_t>(direction)];
}

}  // namespace stagehand::transfer
