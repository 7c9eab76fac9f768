// Whether weights that stay on the device are worth more packed than plain. A plain byte needs no unpacking. Its memory
// holds 1/p of packed weights, which the link then does not bring, if packing takes a byte to p.
#pragma once

namespace stagehand::policy {

struct PackedModel {
    double bytes = 0;           // of a step's weights
    double packable_bytes = 0;  // of these, the ones with packed sources
    double packed_bytes = 0;    // of the packed sources
    double memory_bytes = 0;    // for weights that stay, plain or packed
    double compute_ns = 0;      // of a step
    double link_bytes_per_ns = 0;
    double unpack_ns_per_byte = 0;
};

struct KeptWeights {
    double bytes = 0;    // weights that stay packed, as bytes of contents
    double step_ns = 0;  // estimated
};

// The weights that had best stay packed. Unpacking takes all of the device, so its time adds to the computing. T =
// max(compute + unpacked / unpacking, streamed / link) is least where both are equal, or at an end. Nothing stays
// packed if the streaming step is no longer than `streaming_ns`.
KeptWeights choose_kept_weights(const PackedModel& model, double streaming_ns);

// The most weights that can stay packed, as bytes of contents, if the rest of the memory is for plain ones.
double most_kept_bytes(const PackedModel& model);

// The bytes that a step brings at least, as bytes of contents. Memory saves most if it holds packed weights first.
double least_packed_bytes(const PackedModel& model);
// The shortest step on so much memory, whatever is kept: max(compute, (packed - memory) / link, (packable - memory) /
// unpacking).
double least_packed_step_ns(const PackedModel& model);

}  // namespace stagehand::policy
