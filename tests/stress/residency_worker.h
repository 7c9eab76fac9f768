// One thread of the residency test: it makes random calls and knows the allowed results of each.
#pragma once

#include "residency_stage.h"

namespace stagehand::test {

class Worker {
public:
    Worker(Stage& stage, uint64_t seed) : stage_(stage), random_(seed), text_("seed " + std::to_string(seed)) {}
    ~Worker() {
        while (step_) go_on_in_step();
        while (!protections_.empty()) {
            std::shared_lock life(protections_.back().party->life);
            unprotect(protections_.size() - 1);
        }
    }

    void operate() {
        stage_.operations++;
        if (step_ && pick(3)) return go_on_in_step();
        Party& party = stage_.parties[pick(kRuntimes)];
        const size_t what = pick(200);
        if (what == 0) return replace(party);
        if (what < 3) return budget();
        if (what < 20) return end_scope();
        std::shared_lock life(party.life, std::defer_lock);
        // Waits only while it is replaced. Who is in a step keeps another party alive, and does not wait on top of
        // that.
        if (step_ && &party != step_ && !life.try_lock()) return;
        if (!step_) life.lock();
        if (what < 26) return protect(party);
        if (what < 42) return unprotect(party);
        if (what < 48) return keep_resident(party);
        if (what < 60) return reserve(party);
        if (what < 68) return end_scope();
        if (what < 76) return guest(party);
        if (what < 80) return trim(party);
        if (what < 82) return schedule(party);
        if (what < 110) return inspect(party);
        if (what < 112) return allow(sh_runtime_synchronize(party.model->runtime()), {}, "synchronize");
        if (what < 150) return use(party);
        return begin_step(party, std::move(life));
    }

private:
    struct Protection {
        Party* party;
        sh_scope* scope;
    };

    size_t pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }

    void allow(sh_status status, std::initializer_list<sh_status> also, const char* what) {
        if (status == SH_OK || std::find(also.begin(), also.end(), status) != also.end()) return;
        ADD_FAILURE() << text_ << ": " << what << ": " << sh_status_string(status) << ": " << why();
    }

    void use(Party& party) {
        const size_t i = pick(kBlocks);
        if (i == kMutable) return;
        use(party, i);
    }

    void use(Party& party, size_t i) {
        const uint32_t flags = pick(8) ? 0 : SH_ACQUIRE_NO_WAIT;
        sh_status status;
        if (stage_.contents()) {
            status = party.model->use(i, SH_STREAM_HOST, flags);
        } else {
            auto view = sh_sized<sh_view>();
            status = sh_acquire(party.model->runtime(), party.model->id(i), SH_STREAM_HOST, flags, &view);
            if (status == SH_OK)
                allow(sh_release(party.model->runtime(), party.model->id(i), SH_STREAM_HOST), {}, "release");
        }
        allow(status, {SH_NOT_READY, SH_ERROR_HELD, SH_ERROR_BUSY, SH_ERROR_INVALID_STATE, SH_ERROR_BUDGET}, "use");
    }

    void change(Party& party) {
        auto view = sh_sized<sh_view>();
        const sh_status status =
            sh_acquire(party.model->runtime(), party.model->id(kMutable), SH_STREAM_HOST, 0, &view);
        allow(status, {SH_ERROR_HELD, SH_ERROR_BUSY, SH_ERROR_INVALID_STATE, SH_ERROR_BUDGET}, "acquire to change");
        if (status != SH_OK) return;
        allow(party.model->compare(kMutable, view, SH_STREAM_HOST), {}, "compare");
        allow(party.model->overwrite(kMutable, view, ++party.version), {}, "overwrite");
        allow(sh_release(party.model->runtime(), party.model->id(kMutable), SH_STREAM_HOST), {}, "release");
    }

    void begin_step(Party& party, std::shared_lock<std::shared_mutex> life) {
        if (step_) return use(party);
        std::unique_lock stepping(party.stepping, std::try_to_lock);
        if (!stepping) return;
        const sh_status status = sh_step_begin(party.model->runtime(), nullptr);
        allow(status, {SH_ERROR_BUDGET, SH_ERROR_BUSY}, "step_begin");
        if (status != SH_OK) return;
        step_ = &party;
        stepping_ = std::move(stepping);
        step_life_ = std::move(life);
        uses_ = pick(8);
    }

    void go_on_in_step() {
        if (uses_ > 0) {
            uses_--;
            if (stage_.contents() && pick(4) == 0) return change(*step_);
            return use(*step_);
        }
        allow(sh_step_end(step_->model->runtime()), {}, "step_end");
        step_ = nullptr;
        stepping_.unlock();
        step_life_.unlock();
    }

    void protect(Party& party) {
        for (size_t n = 1 + pick(3); n > 0; n--) {
            const sh_block id = party.model->id(1 + pick(kBlocks - 1));
            Protection protection{&party, nullptr};
            allow(sh_protect_blocks(party.model->runtime(), &id, 1, &protection.scope), {}, "protect");
            protections_.push_back(protection);
        }
    }

    void unprotect(Party& party) {
        for (size_t k = protections_.size(); k-- > 0;)
            if (protections_[k].party == &party) unprotect(k);
    }

    void unprotect(size_t k) {
        const Protection protection = protections_[k];
        protections_.erase(protections_.begin() + static_cast<ptrdiff_t>(k));
        allow(sh_scope_end(protection.scope), {}, "unprotect");  // also if it went with its runtime
    }

    void open(sh_scope* scope) {
        std::lock_guard lock(stage_.scopes_mutex);
        stage_.scopes.push_back(scope);
    }
    bool may_open() {
        std::lock_guard lock(stage_.scopes_mutex);
        return stage_.scopes.size() < kScopes;
    }

    void keep_resident(Party& party) {
        if (!may_open()) return;
        sh_scope* scope = nullptr;
        const auto target = party.model->runtime();
        allow(sh_keep_resident(target, &scope), {}, "keep_resident");
        if (scope) open(scope);
    }

    // Scopes end on any thread, in any order, and also after the runtime is gone.
    void end_scope() {
        sh_scope* scope = nullptr;
        {
            std::lock_guard lock(stage_.scopes_mutex);
            if (stage_.scopes.empty()) return;
            std::swap(stage_.scopes[pick(stage_.scopes.size())], stage_.scopes.back());
            scope = stage_.scopes.back();
            stage_.scopes.pop_back();
        }
        allow(sh_scope_end(scope), {}, "scope_end");
        EXPECT_EQ(sh_scope_end(scope), SH_ERROR_INVALID_HANDLE) << text_;
    }

    void reserve(Party& party) {
        const uint64_t sizes[] = {
            0, 0, pick(40) * kPage, pick(40 * kPage), pick(12) * kPage, (kMostPages + 1 + pick(100)) * kPage};
        const uint64_t bytes = sizes[pick(std::size(sizes))];
        const uint32_t priority = pick(2) ? SH_PRIORITY_PRIMARY : SH_PRIORITY_SECONDARY;
        const auto target = party.model->runtime();
        if (!may_open()) return;
        sh_scope* scope = nullptr;
        const sh_status status = sh_reserve(target, bytes, priority, &scope);
        if (status == SH_OK) open(scope);
        if (bytes > kMostPages * kPage && !Stage::has_ceiling(party)) {  // cut to that otherwise
            EXPECT_EQ(status, SH_ERROR_BUDGET) << text_;
        } else if (bytes) {
            allow(status, {SH_ERROR_BUDGET}, "reserve");
        } else {
            allow(status, {SH_ERROR_BUDGET, SH_ERROR_BUSY, SH_ERROR_INVALID_STATE}, "reserve its plan");
        }
    }

    void guest(Party& party) {
        if (!may_open() || &party == step_) return;
        sh_guest_options options = SH_GUEST_OPTIONS_INIT;
        options.flags = pick(2) ? SH_GUEST_SHRINK : 0;
        options.bytes = pick(3) ? 1 + pick(30 * kPage) : 0;
        options.workspace_bytes = pick(2) ? pick(20 * kPage) : 0;
        sh_scope* scope = nullptr;
        const sh_status status = sh_guest_begin(party.model->runtime(), &options, &scope);
        allow(status, {SH_ERROR_BUDGET, SH_ERROR_BUSY, SH_ERROR_INVALID_STATE}, "guest_begin");
        if (status == SH_OK) open(scope);
    }

    void trim(Party& party) {
        const uint64_t keep = pick(3) ? pick(40) * kPage : 0;
        uint64_t left = 0;
        const sh_status status = sh_trim(party.model->runtime(), keep, &left);
        allow(status, {SH_ERROR_INVALID_STATE}, "trim");
    }

    void budget() {
        allow(stage_.set_budget(kLeastPages + pick(kMostPages - kLeastPages + 1)), {SH_ERROR_BUDGET}, "set_budget");
    }

    void schedule(Party& party) {
        std::vector<size_t> order = pick(2) ? forward(kOrdered) : forward_backward(kOrdered);
        if (pick(2)) std::shuffle(order.begin(), order.end(), random_);
        if (pick(16) == 0) order = forward(kOrdered / 2 + pick(kOrdered / 2));
        allow(party.model->schedule(order, pick(4) * 700), {}, "set_schedule");
    }

    void inspect(Party& party) {
        if (pick(2)) {
            const sh_block_state state = party.model->state(pick(kBlocks));
            EXPECT_LE(state.present_bytes, state.bytes);
            EXPECT_LE(state.resident_bytes + state.streamed_bytes, state.bytes);
            return;
        }
        const sh_runtime_stats stats = party.model->stats();
        EXPECT_EQ(stats.lost, 0u);
        EXPECT_GE(stats.share_bytes, stats.reserved_bytes) << text_;
        EXPECT_GE(stats.share_bytes, stats.guest_bytes) << text_;
        EXPECT_GE(stats.share_bytes, stats.protected_bytes) << text_;
    }

    void replace(Party& party) {
        if (&party == step_) return;
        std::unique_lock life(party.life, std::try_to_lock);
        if (!life) return;
        sh_runtime* const old = party.model->runtime();
        party.model.reset();
        EXPECT_EQ(sh_trim(old, 0, nullptr), SH_ERROR_INVALID_HANDLE);
        stage_.create(party);
    }

    Stage& stage_;
    std::mt19937_64 random_;
    const std::string text_;
    std::vector<Protection> protections_;
    Party* step_ = nullptr;  // in which this thread is
    std::unique_lock<std::mutex> stepping_;
    std::shared_lock<std::shared_mutex> step_life_;
    size_t uses_ = 0;
};

}  // namespace stagehand::test
