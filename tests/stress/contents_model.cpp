#include "contents_model.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace stagehand::test {

bool UseLock::try_share() {
    int32_t users = users_;
    while (users >= 0)
        if (users_.compare_exchange_weak(users, users + 1)) return true;
    return false;
}

bool UseLock::try_own() {
    int32_t nobody = 0;
    return users_.compare_exchange_strong(nobody, -1);
}

Version ModelBlock::now() {
    const std::lock_guard lock(mutex_);
    return versions_.empty() ? nullptr : versions_.back();
}

void ModelBlock::set(Version version) {
    constexpr size_t kKept = 16;
    const std::lock_guard lock(mutex_);
    if (versions_.size() == kKept) versions_.erase(versions_.begin());
    versions_.push_back(std::move(version));
    changes_++;
}

uint64_t ModelBlock::changes() {
    const std::lock_guard lock(mutex_);
    return changes_;
}

std::vector<Version> ModelBlock::since(uint64_t changes) {
    const std::lock_guard lock(mutex_);
    const uint64_t count = changes_ - changes + 1;
    if (count > versions_.size()) return {};
    std::vector<Version> result(versions_.end() - static_cast<ptrdiff_t>(count), versions_.end());
    if (std::find(result.begin(), result.end(), nullptr) != result.end()) result.clear();
    return result;
}

void ModelBlock::forget_serial() {
    const std::lock_guard lock(mutex_);
    seen_ = nullptr;
}

bool ModelBlock::serial_fits(uint64_t serial, const Version& version) {
    const std::lock_guard lock(mutex_);
    if (seen_ && seen_serial_ == serial && seen_ != version) return false;
    seen_serial_ = serial;
    seen_ = version;
    return true;
}

Party::Party(Round& round, uint32_t number, std::mt19937_64& random, uint32_t threads)
    : round_(round), number_(number) {
    const auto pick = [&](uint64_t count) { return random() % count; };
    sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
    options.max_held = static_cast<uint32_t>(1 + pick(threads + 2));
    if (pick(3) == 0) options.unordered_bytes = (4 + pick(12)) * kPage;
    if (sh_runtime_create(round.device().get(), &options, &runtime_) != SH_OK)
        throw std::runtime_error("runtime: " + why());
    homes_ = {SH_STREAM_HOST, round.device().stream(), round.device().stream()};
    // Small ones share units; some are a little more than a page, so that a unit can be resident in part.
    // From a few blocks that take turns in the same pages to many blocks.
    const size_t size = pick(3);
    for (size_t k = size ? 1 + (size - 1) * (1 + pick(3)) : pick(2); k-- > 0;)
        add_group(random, 3 + pick(4), pick(2) ? 100 : kPage, 2 * kPage - 1, 0);
    for (size_t k = 1 + size * (1 + pick(2)); k-- > 0;)
        add_group(random, size ? 1 + pick(2) : 3, 2 * kPage, 8 * kPage, pick(5) ? 0 : SH_BLOCK_WHOLE);
    for (size_t k = size ? 1 + pick(2) : 0; k-- > 0;)
        add_group(random, 1 + pick(3), 100, 4 * kPage, SH_BLOCK_UNORDERED);
    for (uint32_t group = 0; group < groups_; group++) {
        std::vector<ModelBlock*> members;
        for (const auto& block : blocks_)
            if (block->group == group) members.push_back(block.get());
        if (register_blocks(members) != SH_OK) throw std::runtime_error("blocks: " + why());
    }
}

// Blocks of one call: of one kind or of several, some mutable.
void Party::add_group(std::mt19937_64& random, size_t count, uint64_t least, uint64_t most, uint32_t flags) {
    const auto pick = [&](uint64_t choices) { return random() % choices; };
    const Kind common = static_cast<Kind>(pick(6));
    const bool mixed = pick(2);
    for (size_t k = 0; k < count; k++) {
        auto block = std::make_unique<ModelBlock>();
        block->number = static_cast<uint32_t>(blocks_.size());
        block->group = groups_;
        block->bytes = least + pick(most - least + 1);
        block->kind = mixed ? static_cast<Kind>(pick(6)) : common;
        // A worker gathers the pieces if one load has more than sixteen of them.
        block->piece = std::min<uint64_t>({1 + block->bytes / (20 + pick(40)), uint64_t(100) << 10});
        if (block->kind == Kind::touching) block->piece = kPage;
        block->flags = flags;
        if (block->kind <= Kind::pageable && pick(4)) block->flags |= SH_BLOCK_MUTABLE;
        if (block->kind == Kind::pageable && pick(4) == 0) block->flags |= SH_BLOCK_PIN;
        block->home = homes_[pick(homes_.size())];
        blocks_.push_back(std::move(block));
    }
    groups_++;
}

uint64_t Party::pages() const {
    uint64_t pages = 0;
    for (const auto& block : blocks_) pages += (block->bytes + kPage - 1) / kPage;
    return pages;
}

Version Party::next_version(const ModelBlock& block) {
    return stamp(number_ << 8 | block.number, ++round_.versions, block.bytes);
}

sh_status Party::register_blocks(const std::vector<ModelBlock*>& blocks) {
    std::vector<std::vector<sh_segment>> segments;
    std::vector<sh_block_desc> descs;
    std::vector<std::string> names;
    std::vector<sh_block> ids(blocks.size());
    for (ModelBlock* const block : blocks) {
        const Version first = next_version(*block);
        block->set(first);
        block->source = std::make_unique<BlockSource>(round_.device().get(), block->kind, first, block->piece);
        block->forget_serial();
        segments.push_back(block->source->segments());
        names.push_back("block " + std::to_string(block->number));
    }
    for (size_t k = 0; k < blocks.size(); k++) {
        descs.push_back(SH_BLOCK_DESC_INIT);
        descs[k].flags = blocks[k]->flags;
        descs[k].bytes = blocks[k]->bytes;
        descs[k].segments = segments[k].data();
        descs[k].segment_count = segments[k].size();
        descs[k].name = names[k].c_str();
    }
    const sh_status status = sh_register_blocks(runtime_, descs.data(), descs.size(), ids.data());
    for (size_t k = 0; k < blocks.size() && status == SH_OK; k++) blocks[k]->id = ids[k];
    return status;
}

void Party::retire(ModelBlock& block, bool at_once) {
    Retired retired{block.number, std::move(block.source),
                    stamp(number_ << 8 | block.number, ++round_.versions | kRetired, block.bytes)};
    block.set(nullptr);
    if (at_once) return;
    retired.source->write(retired.contents);
    const std::lock_guard lock(retired_mutex_);
    retired_.push_back(std::move(retired));
}

void Party::check_retired() {
    const std::lock_guard lock(retired_mutex_);
    for (const Retired& retired : retired_)
        if (const std::string wrong = retired.source->check(*retired.contents); !wrong.empty())
            fail(retired.block, "a source was written after its block was unregistered: " + wrong);
    retired_.clear();
}

void Party::destroy() {
    sh_runtime_destroy(runtime_);
    runtime_ = nullptr;
    // No write reaches the sources of these blocks after this, either.
    for (const auto& block : blocks_)
        if (block->source) retire(*block, false);
}

void Party::compare(ModelBlock& block, const uint8_t* at, Sight& sight, const char* what) {
    views++;
    if (sight.may_be.empty() || round_.failed()) return;
    Version shown = sight.may_be.back();
    const Stamp* const before = sight.is;
    for (const Version& version : sight.may_be)
        if (before ? version.get() == before : std::memcmp(at, version->bytes.data(), block.bytes) == 0)
            shown = version;
    if (const std::string wrong = differences(at, *shown); !wrong.empty()) {
        std::string others;
        for (const Version& version : sight.may_be)
            if (version != shown) others += " or " + std::to_string(version->version);
        const std::string also =
            before || others.empty() ? "" : ", which may be of version" + others.substr(3) + " as well";
        return fail(block.number, what + also + ": " + wrong);
    }
    sight.is = shown.get();
    if (!block.is_mutable() && !block.serial_fits(sight.serial, shown))
        fail(block.number, "other contents than before, and the serial is the same");
}

void Party::check_source(ModelBlock& block, const char* when) {
    const Version wanted = block.now();
    if (!wanted) return;
    if (const std::string wrong = block.source->check(*wanted); !wrong.empty())
        fail(block.number, std::string("the source, ") + when + ": " + wrong);
}

void Party::fail(uint32_t block, const std::string& text) {
    if (!round_.note_failure()) return;
    std::vector<uint32_t> related;
    std::string who = "runtime " + std::to_string(number_);
    if (block != kNoBlock) {
        const ModelBlock& about = *blocks_[block];
        constexpr const char* kinds[] = {"pinned", "scattered", "touching", "pageable", "file", "fill"};
        who += ", block " + std::to_string(block) + " (" + std::to_string(about.bytes) + " bytes, " +
               kinds[static_cast<size_t>(about.kind)] + (about.is_mutable() ? ", mutable" : "") +
               (about.ordered() ? "" : ", unordered") +
               (about.flags & SH_BLOCK_PIN ? ", pinned while registered" : "") +
               (about.flags & SH_BLOCK_WHOLE ? ", whole" : "") + "; its group is blocks";
        for (const auto& other : blocks_) {
            if (other->group != about.group) continue;
            related.push_back(other->number);
            who += " " + std::to_string(other->number);
        }
        who += ")";
    }
    ADD_FAILURE() << who << ": " << text << "\n  " << round_.where() << "\n"
                  << round_.journal().story(number_, related, 48);
}

}  // namespace stagehand::test
