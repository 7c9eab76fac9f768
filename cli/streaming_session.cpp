#include "streaming_session.h"

#include <fmt/format.h>

#include "interrupt.h"

namespace stagehand::cli {

namespace {

// The source of blocks on a device without contents. The device does not read it, but it must not be NULL.
char no_contents = 0;

sh_segment segment_of(const model::Segment& from, const ModelFiles& files) {
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_FILE;
    segment.offset = from.block_offset;
    segment.bytes = from.bytes;
    segment.file = files.descriptor(from.file);
    segment.file_offset = from.offset;
    segment.packed_bytes = from.packed_bytes;
    segment.packed_offset = from.packed_offset;
    return segment;
}

sh_segment segment_without_contents(std::uint64_t bytes) {
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    segment.bytes = bytes;
    segment.pointer = &no_contents;
    return segment;
}

}  // namespace

BlockDescs::BlockDescs(std::span<const model::Block> blocks, const ModelFiles* files) {
    std::vector<std::size_t> first;
    for (const model::Block& block : blocks) {
        first.push_back(segments_.size());
        if (files == nullptr) {
            segments_.push_back(segment_without_contents(block.bytes));
            continue;
        }
        for (const model::Segment& segment : block.segments) segments_.push_back(segment_of(segment, *files));
    }
    first.push_back(segments_.size());

    descs_.reserve(blocks.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.bytes = blocks[i].bytes;
        desc.segments = segments_.data() + first[i];
        desc.segment_count = first[i + 1] - first[i];
        desc.name = blocks[i].name.c_str();
        desc.flags = blocks[i].unordered ? SH_BLOCK_UNORDERED : 0;
        descs_.push_back(desc);
    }
}

std::vector<sh_block> register_blocks(sh_runtime* runtime, const BlockTable& table, const ModelFiles* files) {
    const BlockDescs descs(table.blocks, files);
    std::vector<sh_block> blocks(descs.size());
    check(sh_register_blocks(runtime, descs.data(), descs.size(), blocks.data()), "registering the model's blocks");
    return blocks;
}

StreamingSession::StreamingSession(sh_device* device, const BlockTable& table, const ModelFiles& files, Order order,
                                   double compute_ms)
    : table_(table),
      files_(files),
      contents_((device_capabilities(device).flags & SH_DEVICE_VIRTUAL_TIME) != 0 && !table.is_packed() ? nullptr
                                                                                                        : &files),
      compute_(device),
      runtime_(create_runtime(device, "stagehand run")),
      uses_(step_uses(table, order, compute_ms)) {
    blocks_ = register_blocks(runtime_.get(), table, contents_);
    set_order(runtime_.get(), schedule(uses_, blocks_), "the order of use");
}

sh_plan_info StreamingSession::plan() { return make_plan(runtime_.get(), "plan"); }

std::optional<std::size_t> StreamingSession::last_use(std::string_view name) const {
    for (std::size_t use = uses_.size(); use > 0; --use) {
        const std::string& of = table_.blocks[uses_[use - 1].block].name;
        if (of.starts_with(name) && (of.size() == name.size() || of[name.size()] == ' ')) return use - 1;
    }
    return std::nullopt;
}

void StreamingSession::fail(sh_status status, std::size_t block) const {
    if (status == SH_ERROR_SOURCE) {
        // If a file has shrunk, the error is the model's. Only this function knows which tensor is cut off.
        files_.check_sizes();
    }
    check(status, fmt::format("block {}", table_.blocks[block].name));
    throw std::logic_error("fail() without an error");
}

bool StreamingSession::step(const Visit& visit) {
    check(sh_step_begin(runtime_.get(), nullptr), "cannot begin a step");
    bool complete = true;
    for (std::size_t i = 0; i < uses_.size(); ++i) {
        if (interrupted() != 0) {
            complete = false;
            break;
        }
        const StepUse& use = uses_[i];
        const sh_block block = blocks_[use.block];
        auto view = sh_sized<sh_view>();
        if (const sh_status status = sh_acquire(runtime_.get(), block, compute_.handle(), 0, &view); status < 0)
            fail(status, use.block);
        if (use.compute_ns > 0) compute_.compute(use.compute_ns);
        visit(i, use, block);
        if (const sh_status status = sh_release(runtime_.get(), block, compute_.handle()); status < 0)
            fail(status, use.block);
    }
    if (const sh_status status = sh_step_end(runtime_.get()); status < 0) {
        if (status == SH_ERROR_SOURCE) files_.check_sizes();
        check(status, "cannot end a step");  // the error is not about one block
    }
    compute_.synchronize();
    return complete;
}

}  // namespace stagehand::cli
