#include "core/runtime/captures.h"

#include "base/no_throw.h"

namespace stagehand::core {

Status Captures::check(sh_stream stream) const {
    SH_TRY(gate_.usable());
    if (stream == SH_STREAM_HOST)
        return Status(SH_ERROR_INVALID_ARGUMENT, "stream is SH_STREAM_HOST: a capture needs a stream of the device");
    if (!memory_.device.has_graphs())
        return Status(SH_ERROR_UNSUPPORTED, share_.device->name() + " does not support graphs");
    if (capture_)
        return Status(
            SH_ERROR_INVALID_STATE,
            gate_.title() + " cannot begin a capture: a capture is under way already, until sh_capture_end()");
    return gate_.at_edge("begin a capture");
}

Status Captures::begin(sh_stream stream) {
    BackendDevice& backend = memory_.device;
    uint32_t capturing = 0;
    SH_TRY(backend.stream_is_capturing(stream, &capturing));
    if (!capturing)
        return Status(SH_ERROR_INVALID_STATE, "the stream is not capturing: begin the driver's capture first");
    abandoned_.clear();
    abandoned_.reserve(1);  // so that abandoning the capture cannot fail
    auto capture = std::make_unique<Capture>(backend, share_.device->lanes(), memory_.registry, memory_.ring,
                                             memory_.unpack_memory);
    if (Status status = no_throw([&] { return capture->begin(stream); }); !status.ok()) {
        abandoned_.push_back(std::move(capture));  // the engine's capture may already contain the objects of this one
        return status;
    }
    capture_ = std::move(capture);
    gate_.capture_begins();
    return Status();
}

Status Captures::acquire(sh_block id, sh_stream stream, sh_view* out) {
    Block* const block = memory_.registry.find(id);
    if (!block) return gate_.unknown_block(id);
    Unit& unit = memory_.registry.unit(block->unit);
    if (stream == SH_STREAM_HOST)
        return Status(SH_ERROR_INVALID_STATE,
                      gate_.title() + ": use a stream of the device, not SH_STREAM_HOST, during a capture");
    if (unit.memory != Memory::planned)
        return Status(SH_ERROR_UNSUPPORTED, memory_.registry.name_of(*block) +
                                                " cannot be captured: it is outside the plan, so its memory may move");
    if (const Block* const packed = memory_.registry.find_news(unit))
        return Status(SH_ERROR_UNSUPPORTED, memory_.registry.name_of(*packed) +
                                                " cannot be captured, nor can blocks that share its pages: it is "
                                                "SH_BLOCK_MUTABLE and packed, so its loads may become others");
    if (Unit* const holder = capture_->holder(unit)) return clearance_.held_by(unit, *holder);
    SH_TRY(capture_->acquire(unit, stream));
    views_.take(*block, unit);
    views_.fill(*block, unit, 0, out);
    return Status();
}

Status Captures::acquire_many(std::span<const sh_block> ids, sh_stream stream, std::span<sh_view* const> out) {
    SH_TRY(gate_.check_blocks(memory_.registry, ids));
    for (size_t i = 0; i < ids.size(); i++) {
        const Status status = no_throw([&] { return acquire(ids[i], stream, out[i]); });
        if (status.ok()) continue;
        while (i-- > 0) (void)release(*memory_.registry.find(ids[i]), stream).ok();
        return status;
    }
    return Status();
}

Status Captures::release(Block& block, sh_stream stream) {
    Unit& unit = memory_.registry.unit(block.unit);
    if (stream == SH_STREAM_HOST)
        return Status(SH_ERROR_INVALID_STATE,
                      gate_.title() + ": use a stream of the device, not SH_STREAM_HOST, during a capture");
    Status status = no_throw([&] { return capture_->release(unit, stream); });
    views_.drop(block, unit);
    return status;
}

Status Captures::end(sh_stream stream, std::unique_ptr<Graph>* out_graph) {
    if (!capture_ || capture_->stream() != stream)
        return Status(SH_ERROR_INVALID_STATE, gate_.title() + " has no capture that began on this stream");
    if (gate_.views() && out_graph)
        return Status(SH_ERROR_INVALID_STATE, gate_.title() + " cannot end the capture: release all views first");
    views_.drop_all();  // no view was held when the capture began
    const Status status = no_throw([&] {
        SH_TRY(capture_->end());
        if (out_graph) *out_graph = capture_->finish();
        return Status();
    });
    if (!out_graph || !status.ok()) abandoned_.push_back(std::move(capture_));  // begin() has reserved room
    capture_.reset();
    gate_.capture_ends();
    return gate_.note(status);
}

}  // namespace stagehand::core
