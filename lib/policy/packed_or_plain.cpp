#include "policy/packed_or_plain.h"

#include <algorithm>

namespace stagehand::policy {
namespace {

constexpr double kShorterBy = 0.97;  // of the streaming step
constexpr int kHalvings = 50;

class Steps {
public:
    explicit Steps(const PackedModel& model)
        : model_(model),
          part_(model.packed_bytes / model.packable_bytes),
          unpackable_(model.bytes - model.packable_bytes) {}

    // The most bytes that can stay packed: all that are packable, all that fit, or all that the plain ones leave over.
    double most() const {
        const double rest = std::max(0.0, model_.bytes - model_.memory_bytes);
        return std::min({model_.packable_bytes, model_.memory_bytes / part_, rest / std::max(1e-9, 1 - part_)});
    }
    double link_ns(double kept) const {
        const double unpackable = std::max(0.0, unpackable_ - plain(kept));
        return (unpackable + part_ * packable_streamed(kept)) / model_.link_bytes_per_ns;
    }
    double device_ns(double kept) const {
        return model_.compute_ns + (kept + packable_streamed(kept)) * model_.unpack_ns_per_byte;
    }
    double step_ns(double kept) const { return std::max(link_ns(kept), device_ns(kept)); }

private:
    // Bytes that stay plain. Those that cannot be packed come first, because a byte of them saves the link the most.
    double plain(double kept) const { return model_.memory_bytes - kept * part_; }
    double packable_streamed(double kept) const {
        return std::max(0.0, model_.packable_bytes - kept - std::max(0.0, plain(kept) - unpackable_));
    }

    const PackedModel& model_;
    const double part_, unpackable_;  // packed / packable; bytes
};

}  // namespace

KeptWeights choose_kept_weights(const PackedModel& model, double streaming_ns) {
    if (!(model.packable_bytes > 0) || !(model.unpack_ns_per_byte > 0)) return {};
    const Steps steps(model);
    // With more kept weights, the link has less to do and the device more.
    double low = 0, high = steps.most();
    if (steps.link_ns(high) < steps.device_ns(high))
        for (int i = 0; i < kHalvings; i++) {
            const double middle = (low + high) / 2;
            (steps.link_ns(middle) < steps.device_ns(middle) ? high : low) = middle;
        }
    const KeptWeights best = {high, steps.step_ns(high)};
    return best.bytes > 0 && best.step_ns < kShorterBy * streaming_ns ? best : KeptWeights();
}

double most_kept_bytes(const PackedModel& model) { return model.packable_bytes > 0 ? Steps(model).most() : 0; }

double least_packed_bytes(const PackedModel& model) {
    if (!(model.packable_bytes > 0)) return std::max(0.0, model.bytes - model.memory_bytes);
    const double in_packed = std::min(model.memory_bytes, model.packed_bytes);  // memory that holds packed weights
    const double kept = in_packed * model.packable_bytes / model.packed_bytes;
    return std::max(0.0, model.bytes - kept - (model.memory_bytes - in_packed));
}

double least_packed_step_ns(const PackedModel& model) {
    const double packed = model.bytes - model.packable_bytes + model.packed_bytes;
    const double on_link = packed - model.memory_bytes, unpacked = model.packable_bytes - model.memory_bytes;
    return std::max({model.compute_ns, on_link / model.link_bytes_per_ns, unpacked * model.unpack_ns_per_byte});
}

}  // namespace stagehand::policy
