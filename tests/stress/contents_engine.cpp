#include "contents_engine.h"

#include <chrono>
#include <thread>

namespace stagehand::test {
namespace {

bool driver_error(sh_status status) {
    return status == SH_ERROR_BACKEND || status == SH_ERROR_OUT_OF_DEVICE_MEMORY || status == SH_ERROR_UNSUPPORTED ||
           status == SH_ERROR_DEVICE_LOST;
}

// The statuses that an acquire may return because of the engine's own actions.
constexpr std::initializer_list<sh_status> kRefusals = {SH_NOT_READY, SH_ERROR_HELD, SH_ERROR_BUSY,
                                                        SH_ERROR_INVALID_STATE, SH_ERROR_BUDGET};

}  // namespace

ContentsEngine::ContentsEngine(Round& round, std::vector<Party*> parties, uint32_t thread)
    : round_(round),
      parties_(std::move(parties)),
      journal_(round.journal().of(thread)),
      random_(round.seed() * 64 + thread) {
    EXPECT_SUCCEEDS(sh_stream_create(round_.device().get(), &stream_));
}

ContentsEngine::~ContentsEngine() { give_stream(); }

// Other threads may be in a step in which the stream was used. A stream that cannot be forgotten is destroyed with the
// device.
void ContentsEngine::give_stream() {
    sh_status status = SH_OK;
    for (Party* party : parties_) {
        const auto forget = [&] { return sh_stream_forget(party->runtime(), stream_); };
        for (int attempt = 0; attempt < 4; attempt++)
            if (status = call(*party, "sh_stream_forget", kNoBlock, {}, Driver::may_fail, forget); status == SH_OK)
                break;
        if (status != SH_OK) return;
    }
    sh_stream_destroy(round_.device().get(), stream_);
}

void ContentsEngine::operate() {
    Party& where = party();
    if (where.lost || where.quiet) return pause();
    where.inside++;
    operate(where);
    where.inside--;
}

void ContentsEngine::operate(Party& where) {
    switch (pick(64)) {
        case 0:
        case 1:
        case 2:
        case 3:
            return invalidate(where, any(where));
        case 4:
        case 5:
            return discard(where, any(where), 0);
        case 6:
        case 7:
        case 8:
        case 9:
            return update(where, 0);
        case 10:
        case 11:
        case 12:
            return register_anew(where, 0);
        case 13:
        case 14:
        case 15:
        case 16:
        case 17:
            return write_back(where);
        case 18:
        case 19:
        case 20:
            return prefetch(where);
        case 21:
            return schedule(where, pick(2));
        case 22:
        case 23:
            return alone(where);
        case 24:
            return budget(where);
        case 25:
            return trim(where);
        case 26:
            return synchronize(where);
        case 27:
            return inspect(where);
        case 28:
            return change_stream();
        case 29:
        case 30:
        case 31:
            return step(where);
        case 32:
        case 33:
        case 34:
        case 35:
            return use_many(where, 0);
        case 36:
            return round_.setting().faulty ? sabotage(where) : pause();
        case 37:
            return pause();
        default:
            return pick(2) ? change(where, any(where), 0) : use(where, any(where), 0);
    }
}

// Runs while a view is held or a source is being updated.
void ContentsEngine::something_else(Party& party, const ModelBlock& beside, int within) {
    if (party.lost || within > 1) return;
    // A neighbour, mostly.
    std::vector<ModelBlock*> near;
    for (const auto& block : party.blocks())
        if (block->group == beside.group && block.get() != &beside) near.push_back(block.get());
    ModelBlock& other = near.empty() || pick(3) == 0 ? any(party) : *near[pick(near.size())];
    switch (pick(32)) {
        case 0:
        case 1:
            return invalidate(party, other);
        case 2:
            return discard(party, other, within + 1);
        case 3:
        case 4:
            return update(party, within + 1);
        case 5:
            return register_anew(party, within + 1);
        case 6:
        case 7:
        case 8:
            return write_back(party);
        case 9:
            schedule(party, true);
            return prefetch(party);
        case 10:
        case 11:
            return prefetch(party);
        case 12:
            return schedule(party, pick(2));
        case 13:
            return plan(party);
        case 14:
            return budget(party);
        case 15:
            return trim(party);
        case 16:
            return use_many(party, within + 1);
        case 17:
            return inspect(party);
        case 18:
            return pause();
        default:
            return pick(3) ? change(party, other, within + 1) : use(party, other, within + 1);
    }
}

void ContentsEngine::pause() { std::this_thread::sleep_for(std::chrono::microseconds(pick(300))); }

std::vector<ModelBlock*> ContentsEngine::some(Party& party, size_t most) {
    ModelBlock& first = any(party);
    std::vector<ModelBlock*> blocks{&first};
    const bool near = pick(2);
    for (size_t k = 1 + pick(most); k-- > 1;) {
        ModelBlock& block = any(party, near ? first.number + k : pick(party.blocks().size()));
        if (std::find(blocks.begin(), blocks.end(), &block) == blocks.end()) blocks.push_back(&block);
    }
    return blocks;
}

void ContentsEngine::judge(Party& party, const char* name, uint32_t block, sh_status status,
                           std::initializer_list<sh_status> also, Driver driver) {
    if (status == SH_OK || std::find(also.begin(), also.end(), status) != also.end()) return;
    if (round_.setting().faulty) {
        if (status == SH_ERROR_RUNTIME_LOST) {
            party.lost = true;
            return;
        }
        if (driver == Driver::may_fail && driver_error(status)) return;
    }
    party.fail(block, std::string(name) + " returned " + sh_status_string(status) + ": " + why());
}

sh_stream ContentsEngine::stream_for(const ModelBlock& block) {
    if (block.is_mutable()) return block.home;
    return pick(3) ? stream_ : SH_STREAM_HOST;
}

ContentsEngine::SightOf ContentsEngine::acquire(Party& party, ModelBlock& block, sh_stream stream, uint32_t flags,
                                                sh_view* out) {
    *out = sh_sized<sh_view>();
    const uint64_t changes = block.changes();
    const sh_status status =
        call(party, stream == SH_STREAM_HOST ? "sh_acquire on the host" : "sh_acquire", block.number, kRefusals,
             Driver::may_fail, [&] { return sh_acquire(party.runtime(), block.id, stream, flags, out); });
    if (status == SH_NOT_READY && !(flags & SH_ACQUIRE_NO_WAIT))
        party.fail(block.number, "sh_acquire returned SH_NOT_READY, which nobody asked for");
    if (status != SH_OK) {
        party.refused++;
        return nullptr;
    }
    if (out->block != block.id || out->bytes != block.bytes || !out->address)
        party.fail(block.number, "a view of another block");
    const auto sight = std::make_shared<Sight>();
    sight->may_be = block.since(changes);
    sight->serial = out->serial;
    return sight;
}

void ContentsEngine::look(Party& party, ModelBlock& block, const sh_view& view, sh_stream stream, const SightOf& sight,
                          const char* what) {
    const auto compare = [&party, &block, sight, what](const uint8_t* at) { party.compare(block, at, *sight, what); };
    EXPECT_SUCCEEDS(round_.device().bytes().look(stream, view.address, block.bytes, compare));
    if (pick(8)) return;
    std::vector<uint8_t> bytes(block.bytes);
    const sh_status status = call(party, "sh_read_block", block.number, {}, Driver::may_fail, [&] {
        return sh_read_block(party.runtime(), block.id, stream, 0, bytes.data(), bytes.size());
    });
    if (status == SH_OK) party.compare(block, bytes.data(), *sight, "sh_read_block");
}

void ContentsEngine::release(Party& party, ModelBlock& block, sh_stream stream) {
    call(party, "sh_release", block.number, {}, Driver::may_fail,
         [&] { return sh_release(party.runtime(), block.id, stream); });
}

void ContentsEngine::use(Party& party, ModelBlock& block, int within) {
    const Claim claim = Claim::to_use(block.lock);
    if (!claim || !block.id) return;
    const sh_stream stream = stream_for(block);
    sh_view view;
    const SightOf sight = acquire(party, block, stream, pick(8) ? 0 : SH_ACQUIRE_NO_WAIT, &view);
    if (!sight) return;
    look(party, block, view, stream, sight, "a view");
    if (pick(2)) {
        for (size_t k = 1 + pick(3); k-- > 0;) something_else(party, block, within);
        look(party, block, view, stream, sight, "a view, later");
    }
    release(party, block, stream);
}

void ContentsEngine::use_many(Party& party, int within) {
    std::vector<Claim> claims;
    std::vector<ModelBlock*> blocks;
    std::vector<sh_block> ids;
    sh_stream stream = pick(2) ? stream_ : SH_STREAM_HOST;
    bool fixed = false;
    for (ModelBlock* const block : some(party, 4)) {
        Claim claim = Claim::to_use(block->lock);
        if (!claim || !block->id || (block->is_mutable() && fixed && block->home != stream)) continue;
        if (block->is_mutable()) {
            stream = block->home;
            fixed = true;
        }
        for (size_t times = pick(8) ? 1 : 2; times-- > 0;) {
            blocks.push_back(block);
            ids.push_back(block->id);
        }
        claims.push_back(std::move(claim));
    }
    if (blocks.empty()) return;
    std::vector<sh_view> views(blocks.size(), sh_sized<sh_view>());
    std::vector<uint64_t> changes;
    for (ModelBlock* const block : blocks) changes.push_back(block->changes());
    const sh_status status = call(party, "sh_acquire_many", blocks[0]->number, kRefusals, Driver::may_fail, [&] {
        return sh_acquire_many(party.runtime(), ids.data(), ids.size(), stream, pick(8) ? 0 : SH_ACQUIRE_NO_WAIT,
                               views.data());
    });
    if (status != SH_OK) return;
    std::vector<SightOf> sights;
    for (size_t k = 0; k < blocks.size(); k++) {
        sights.push_back(std::make_shared<Sight>());
        sights[k]->may_be = blocks[k]->since(changes[k]);
        sights[k]->serial = views[k].serial;
    }
    for (size_t k = 0; k < blocks.size(); k++)
        look(party, *blocks[k], views[k], stream, sights[k], "a view of several");
    if (pick(4) == 0) {
        something_else(party, *blocks[0], within);
        for (size_t k = 0; k < blocks.size(); k++)
            look(party, *blocks[k], views[k], stream, sights[k], "a view of several, later");
    }
    for (size_t k = 0; k < ids.size(); k++)
        call(party, "sh_release", blocks[k]->number, {}, Driver::may_fail,
             [&] { return sh_release(party.runtime(), ids[k], stream); });
}

void ContentsEngine::change(Party& party, ModelBlock& block, int within) {
    if (!block.is_mutable()) return use(party, block, within);
    const Claim claim = Claim::to_change(block.lock);
    if (!claim || !block.id) return;
    if (pick(8) == 0) {  // uses on another stream come after those on this one
        const sh_status status =
            block.home == SH_STREAM_HOST ? SH_OK : sh_stream_synchronize(round_.device().get(), block.home);
        EXPECT_EQ(status, SH_OK) << why();
        block.home = party.homes()[pick(party.homes().size())];
    }
    if (!overwrite(party, block, within)) return;
    if (pick(3) == 0) write_back_one(party, block);
}

bool ContentsEngine::overwrite(Party& party, ModelBlock& block, int within) {
    const sh_stream stream = block.home;
    sh_view view;
    const SightOf sight = acquire(party, block, stream, 0, &view);
    if (!sight) return false;
    look(party, block, view, stream, sight, "a view to be changed");
    sh_view again;
    const bool twice = pick(6) == 0 && acquire(party, block, stream, 0, &again);
    const Version next = party.next_version(block);
    const auto mark = [&] {
        call(
            party, "sh_mark_dirty", block.number, {}, Driver::silent,
            [&] { return sh_mark_dirty(party.runtime(), block.id); }, next->version);
    };
    const bool mark_first = pick(2);
    if (mark_first) mark();
    if (pick(3) == 0) something_else(party, block, within);
    EXPECT_SUCCEEDS(round_.device().bytes().write(stream, view.address, next->bytes));
    block.set(next);
    const SightOf changed = std::make_shared<Sight>();
    changed->may_be = {next};
    if (!mark_first) mark();
    if (pick(3) == 0) {
        something_else(party, block, within);
        look(party, block, view, stream, changed, "a view that was changed");
    }
    if (twice) release(party, block, stream);
    release(party, block, stream);
    return true;
}

}  // namespace stagehand::test
