// ContentsEngine: an engine's thread that makes random calls of every kind that an engine may make, and compares all
// bytes that it sees with the reference.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "contents_model.h"

namespace stagehand::test {

class ContentsEngine {
public:
    ContentsEngine(Round& round, std::vector<Party*> parties, uint32_t thread);
    ~ContentsEngine();

    void operate();
    void begin();  // before the threads: an order, mostly

    // Makes the last calls of a round: writes dirty contents back and gives all memory back.
    static void finish(Party& party, ThreadJournal& journal);

private:
    // Says whether a call may return errors of the driver: those that the call's comment lists, or none.
    enum class Driver { silent, may_fail };

    size_t pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }
    Party& party() { return *parties_[pick(parties_.size())]; }
    static ModelBlock& any(Party& party, size_t choice) { return *party.blocks()[choice % party.blocks().size()]; }
    ModelBlock& any(Party& party) { return any(party, pick(party.blocks().size())); }
    std::vector<ModelBlock*> some(Party& party, size_t most);  // neighbours or any blocks, each only once
    void pause();

    // Makes a call and judges its status: SH_OK, one of these statuses, or a status of the driver if calls are made to
    // fail.
    template <class Call>
    sh_status call(Party& party, const char* name, uint32_t block, std::initializer_list<sh_status> also, Driver driver,
                   Call&& make, uint32_t version = 0);
    void judge(Party& party, const char* name, uint32_t block, sh_status status, std::initializer_list<sh_status> also,
               Driver driver);
    // As above, for ids of blocks that no thread has claimed. Other threads may unregister such blocks meanwhile.
    template <class Call>
    sh_status call_unclaimed(Party& party, const char* name, const std::vector<ModelBlock*>& blocks,
                             std::initializer_list<sh_status> also, Driver driver, Call&& make);

    void operate(Party& party);

    // Views. `within` is the number of views or updates that this thread holds already.
    sh_stream stream_for(const ModelBlock& block);
    using SightOf = std::shared_ptr<Sight>;
    SightOf acquire(Party& party, ModelBlock& block, sh_stream stream, uint32_t flags,
                    sh_view* out);  // null: there is no view
    void look(Party& party, ModelBlock& block, const sh_view& view, sh_stream stream, const SightOf& sight,
              const char* what);
    void release(Party& party, ModelBlock& block, sh_stream stream);
    void use(Party& party, ModelBlock& block, int within);
    void use_many(Party& party, int within);
    void change(Party& party, ModelBlock& block, int within);
    bool overwrite(Party& party, ModelBlock& block, int within);  // claimed to change
    void something_else(Party& party, const ModelBlock& beside, int within);

    // Contents.
    void write_back(Party& party);
    bool write_back_one(Party& party, ModelBlock& block);
    void invalidate(Party& party, ModelBlock& block);
    void discard(Party& party, ModelBlock& block, int within);
    void update(Party& party, int within);
    void update_held(Party& party, ModelBlock& block, int within);
    bool update_claimed(Party& party, const std::vector<ModelBlock*>& blocks, bool held, int within);
    void misplaced_calls(Party& party, ModelBlock& block, bool held);
    void register_anew(Party& party, int within);

    // Order, plan and memory.
    void prefetch(Party& party);
    void schedule(Party& party, bool lacking);
    void alone(Party& party);
    void step(Party& party);
    void plan(Party& party);
    void budget(Party& party);
    void trim(Party& party);
    void synchronize(Party& party);
    void inspect(Party& party);
    void give_stream();
    void change_stream();
    void sabotage(Party& party);

    Round& round_;
    const std::vector<Party*> parties_;
    ThreadJournal& journal_;
    std::mt19937_64 random_;
    sh_stream stream_ = SH_STREAM_HOST;  // of its own
};

template <class Call>
sh_status ContentsEngine::call(Party& party, const char* name, uint32_t block, std::initializer_list<sh_status> also,
                               Driver driver, Call&& make, uint32_t version) {
    journal_.begin(name, party.number(), block, version);
    const sh_status status = make();
    journal_.end(status);
    judge(party, name, block, status, also, driver);
    return status;
}

template <class Call>
sh_status ContentsEngine::call_unclaimed(Party& party, const char* name, const std::vector<ModelBlock*>& blocks,
                                         std::initializer_list<sh_status> also, Driver driver, Call&& make) {
    std::vector<sh_block> ids;
    std::vector<const ModelBlock*> named;  // a block that is named twice may have been registered anew in between
    for (const ModelBlock* block : blocks) {
        const sh_block id = block->id;
        if (!id) continue;
        ids.push_back(id);
        named.push_back(block);
    }
    if (ids.empty()) return SH_OK;
    const uint32_t about = blocks.size() == 1 ? blocks[0]->number : kNoBlock;
    journal_.begin(name, party.number(), about, 0);
    const sh_status status = make(ids);
    journal_.end(status);
    if (status == SH_ERROR_INVALID_HANDLE)
        for (size_t k = 0; k < ids.size(); k++)
            if (named[k]->id != ids[k]) return status;
    judge(party, name, about, status, also, driver);
    return status;
}

}  // namespace stagehand::test
