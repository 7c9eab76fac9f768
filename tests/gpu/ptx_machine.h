// PtxMachine: runs one block of threads of a PTX program on the host, for the few instructions that content_hash.ptx
// has. A machine without a GPU cannot run the program otherwise.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace stagehand::test {

class PtxMachine {
public:
    explicit PtxMachine(const std::string& program) {
        std::istringstream lines(program);
        for (std::string line; std::getline(lines, line);) add(line);
    }

    // Runs the threads of block `block`. Parameter i of the program is parameters[i].
    void run(uint32_t threads, uint32_t block, const std::vector<uint64_t>& parameters) {
        parameters_ = parameters;
        block_ = block;
        shared_.assign(48 << 10, 0);
        std::vector<Thread> all(threads);
        for (uint32_t i = 0; i < threads; i++) all[i].index = i;
        // Each thread runs up to the next barrier, and no thread passes it before all have come.
        for (size_t ended = 0; ended < threads;) {
            ended = 0;
            for (Thread& thread : all) ended += run_to_barrier(thread) ? 0 : 1;
            if (ended != 0 && ended != threads) throw std::runtime_error("some threads ended before a barrier");
        }
    }

private:
    struct Thread {
        uint32_t index = 0;
        size_t at = 0;
        std::map<std::string, uint64_t> registers;
    };
    struct Instruction {
        std::string guard, name;
        std::vector<std::string> operands;
    };

    // Takes a line apart. Directives say nothing that this machine needs.
    void add(std::string line) {
        for (char& c : line)
            if (std::strchr(",;[]{}\t", c)) c = ' ';
        std::istringstream words(line);
        Instruction made;
        if (!(words >> made.name)) return;
        if (made.name.back() == ':') {
            labels_[made.name.substr(0, made.name.size() - 1)] = code_.size();
            return;
        }
        if (std::strchr(".()", made.name[0])) return;
        if (made.name[0] == '@') {
            made.guard = made.name.substr(1);
            words >> made.name;
        }
        for (std::string operand; words >> operand;) made.operands.push_back(operand);
        code_.push_back(std::move(made));
    }

    // False: the thread has ended.
    bool run_to_barrier(Thread& thread) {
        for (;;) {
            const Instruction& now = code_.at(thread.at++);
            if (!now.guard.empty() && !thread.registers.at(now.guard)) continue;
            if (now.name == "ret") return false;
            if (now.name == "bar.sync") return true;
            if (now.name.starts_with("bra"))
                thread.at = labels_.at(now.operands.at(0));
            else
                execute(thread, now);
        }
    }

    uint64_t value(const Thread& thread, const std::string& operand) const {
        if (operand == "%tid.x") return thread.index;
        if (operand == "%ctaid.x") return block_;
        if (operand[0] == '%') return thread.registers.at(operand);
        if (operand.find("_param_") != std::string::npos)
            return parameters_.at(std::stoul(operand.substr(operand.rfind('_') + 1)));
        if (operand.find("$") != std::string::npos) return 0;  // the only shared variable
        return operand[0] == '-' ? static_cast<uint64_t>(std::stoll(operand)) : std::stoull(operand);
    }

    // "register+offset" or the name of a variable.
    void* memory(const Thread& thread, const std::string& space, const std::string& operand) {
        const size_t plus = operand.find('+');
        const uint64_t address = value(thread, operand.substr(0, plus)) +
                                 (plus == std::string::npos ? 0 : std::stoull(operand.substr(plus + 1)));
        return space == "shared" ? &shared_.at(address) : reinterpret_cast<void*>(address);
    }

    void execute(Thread& thread, const Instruction& now) {
        std::vector<std::string> parts;
        std::istringstream name(now.name);
        for (std::string part; std::getline(name, part, '.');) parts.push_back(part);
        const auto& at = now.operands;
        const bool narrow = parts.back().ends_with("32");
        const auto cut = [&](uint64_t x) { return narrow ? static_cast<uint32_t>(x) : x; };
        const auto in = [&](size_t i) { return cut(value(thread, at.at(i))); };
        uint64_t* const to = parts[0] == "st" ? nullptr : &thread.registers[at.at(0)];
        if (parts[0] == "ld" && parts[1] == "param") {
            *to = in(1);
        } else if (parts[0] == "ld") {
            std::memcpy(to, memory(thread, parts[1], at.back()), 8);
            if (parts[2] == "v2")
                std::memcpy(&thread.registers[at[1]], static_cast<char*>(memory(thread, parts[1], at.back())) + 8, 8);
        } else if (parts[0] == "st") {
            const uint64_t words[] = {in(1), in(2)};
            std::memcpy(memory(thread, parts[1], at[0]), words, sizeof words);
        } else if (parts[0] == "setp") {
            *to = compares(parts[1], in(1), in(2));
        } else if (parts[0] == "mov" || parts[0] == "cvt") {
            *to = in(1);
        } else if (now.name == "mul.wide.u32") {
            *to = in(1) * in(2);
        } else {
            *to = cut(result(parts[0], in(1), in(2)));
        }
    }

    static bool compares(const std::string& how, uint64_t a, uint64_t b) {
        if (how == "eq") return a == b;
        if (how == "ne") return a != b;
        if (how == "lt") return a < b;
        if (how == "le") return a <= b;
        if (how == "gt") return a > b;
        throw std::runtime_error("setp." + how);
    }
    static uint64_t result(const std::string& what, uint64_t a, uint64_t b) {
        if (what == "add") return a + b;
        if (what == "mul") return a * b;
        if (what == "xor") return a ^ b;
        if (what == "or") return a | b;
        if (what == "and") return a & b;
        if (what == "shl") return a << b;
        if (what == "shr") return a >> b;
        throw std::runtime_error(what);
    }

    std::vector<Instruction> code_;
    std::map<std::string, size_t> labels_;
    std::vector<uint64_t> parameters_;
    uint32_t block_ = 0;
    std::vector<char> shared_;
};

}  // namespace stagehand::test
