// Recycled: records that are taken, given back and taken again, so that a steady state allocates nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace stagehand {

template <class Record>
class Recycled {
public:
    // Returns an idle record, or makes a new record if none is idle. `prepare` is called for a new record before anyone
    // can take it.
    template <class Prepare>
    Record& take(Prepare&& prepare) {
        if (idle_.empty()) {
            expect(all_.size() + 1);
            auto made = std::make_unique<Record>();
            prepare(*made);
            all_.push_back(std::move(made));
            idle_.push_back(all_.back().get());
        }
        Record& record = *idle_.back();
        idle_.pop_back();
        return record;
    }
    void give(Record& record) noexcept { idle_.push_back(&record); }  // expect() made room for all records
    // Makes room for `count` records.
    void expect(size_t count) { idle_.reserve(count); }
    // Returns all records, whether they are taken or not.
    std::span<const std::unique_ptr<Record>> all() const { return all_; }

private:
    std::vector<std::unique_ptr<Record>> all_;
    std::vector<Record*> idle_;
};

}  // namespace stagehand
