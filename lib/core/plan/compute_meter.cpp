#include "core/plan/compute_meter.h"

#include <algorithm>

#include "base/no_throw.h"

namespace stagehand::core {
namespace {

constexpr size_t kMostSpans = 1 << 14;  // longer steps are planned without measured times

}  // namespace

void ComputeMeter::begin(uint32_t unit, sh_stream stream) {
    if (!measuring_ || count_ >= kMostSpans) return;
    if (count_ == spans_.size() && !no_throw([&] { return spans_.emplace_back(device_), Status(); }).ok()) return;
    Span& span = spans_[count_];
    span.unit = unit;
    span.by_events = stream != SH_STREAM_HOST;
    span.open = true;
    if (!span.by_events)
        span.begin_ns = device_.now_ns();
    else if (!span.on_device.begin(stream).ok())
        return;
    count_++;
}

void ComputeMeter::end(uint32_t unit, sh_stream stream) {
    if (!measuring_) return;
    for (size_t i = count_; i-- > 0;) {
        Span& span = spans_[i];
        if (!span.open || span.unit != unit) {
            if (count_ - i > 64) return;  // so many spans are open that the times mean nothing
            continue;
        }
        if (span.by_events && stream == SH_STREAM_HOST) return;  // its work is on another stream
        if (!span.by_events)
            span.end_ns = device_.now_ns();
        else if (!span.on_device.end(stream).ok())
            return;
        span.open = false;
        return;
    }
}

bool ComputeMeter::read(std::vector<Order::Entry>* entries) {
    bool any = false;
    size_t next = 0;
    for (Order::Entry& entry : *entries) {
        while (next < count_ && spans_[next].unit != entry.unit) next++;
        if (next == count_) break;
        uint64_t sum = 0;
        for (; next < count_ && spans_[next].unit == entry.unit; next++) {
            const Span& span = spans_[next];
            if (span.open) continue;
            int64_t ns = static_cast<int64_t>(span.end_ns - span.begin_ns);
            if (span.by_events && !(span.on_device.wait().ok() && span.on_device.read(&ns).ok())) continue;
            if (ns > 0) sum += static_cast<uint64_t>(ns);
        }
        if (entry.compute_ns == 0 && sum) {
            entry.compute_ns = sum;
            any = true;
        }
    }
    return any;
}

ComputeMeter::Read ComputeMeter::read_sample(const std::vector<Order::Entry>& entries, std::vector<uint64_t>* times) {
    const Read read = read_times(entries, times);
    if (read != Read::not_yet) sample_ = false;
    return read;
}

// The newest spans end last, so they are asked first.
ComputeMeter::Read ComputeMeter::read_times(const std::vector<Order::Entry>& entries, std::vector<uint64_t>* times) {
    if (count_ == kMostSpans) return Read::never;
    for (size_t i = count_; i-- > 0;) {
        const Span& span = spans_[i];
        if (span.open) return Read::never;
        bool ended = true;
        if (span.by_events && !span.on_device.has_ended(&ended).ok()) return Read::never;
        if (!ended) return Read::not_yet;
    }
    times->assign(entries.size(), 0);
    size_t next = 0;
    for (size_t entry = 0; entry < entries.size(); entry++) {
        if (next == count_ || spans_[next].unit != entries[entry].unit) return Read::never;
        for (; next < count_ && spans_[next].unit == entries[entry].unit; next++) {
            const Span& span = spans_[next];
            int64_t ns = static_cast<int64_t>(span.end_ns - span.begin_ns);
            if (span.by_events && !span.on_device.read(&ns).ok()) return Read::never;
            (*times)[entry] += static_cast<uint64_t>(std::max<int64_t>(ns, 0));
        }
    }
    return next == count_ ? Read::yes : Read::never;
}

}  // namespace stagehand::core
