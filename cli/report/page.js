// Draws the pictures of a report.
(function () {
    "use strict";

    var colour = kit.colour, bytesText = kit.bytesText, timeText = kit.timeText, tickText = kit.tickText,
        timeTick = kit.timeTick, byteTicks = kit.byteTicks, picture = kit.picture, pattern = kit.pattern,
        legend = kit.legend, mark = kit.mark, axes = kit.axes, path = kit.path, level = kit.level,
        filled = kit.filled, sensitive = kit.sensitive, tip = kit.tip;

    var data = JSON.parse(document.getElementById("data").textContent);
    var lanes = [
        { name: "computation", fill: "solid", colour: colour.blue },
        { name: "in use", fill: "outline", colour: colour.sky },
        { name: "copies", fill: "stripes", colour: colour.orange },
        { name: "waits", fill: "crosses", colour: colour.vermilion },
        { name: "write-backs", fill: "bars", colour: colour.green },
        { name: "planning", fill: "dots", colour: colour.purple }
    ];
    var dashes = ["none", "7 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2"];
    var marks = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"];
    var series = [colour.blue, colour.vermilion, colour.green, colour.purple, colour.orange, colour.black];

    // What of each block stays.
    function drawPlan(element, run) {
        var chart = picture(element, 300, { left: 70, right: 12, top: 40, bottom: 38 });
        var parts = [{ key: "resident", name: "stays on the device", fill: "solid", colour: colour.blue },
                     { key: "streamed", name: "is copied in each step", fill: "stripes", colour: colour.orange },
                     { key: "unordered", name: "outside the order", fill: "dots", colour: colour.purple }]
            .filter(function (part) { return run.blocks.some(function (block) { return block[part.key] > 0; }); });
        chart.top = legend(chart, parts) + 8;
        var total = function (block) { return block.resident + block.streamed + block.unordered; };
        var largest = d3.max(run.blocks, total);
        var x = d3.scale.linear().domain([0, run.blocks.length]).range([chart.left, chart.right]);
        var y = d3.scale.linear().domain([0, largest]).range([chart.bottom, chart.top]);
        axes(chart, x, y, { xText: d3.format("d"), yText: tickText, yValues: byteTicks(largest, 5), xName: "block",
                            xValues: function (count) {
                                return x.ticks(count).filter(function (tick) { return tick % 1 === 0; });
                            } });
        var wide = x(1) - x(0);
        var gap = wide > 5 ? 1.5 : 0;
        parts.forEach(function (part, place) {
            filled(chart, run.blocks.map(function (block, index) {
                var from = d3.sum(parts.slice(0, place), function (below) { return block[below.key]; });
                return { x: x(index) + gap / 2, width: Math.max(wide - gap, 0.5), y: y(from + block[part.key]),
                         height: y(from) - y(from + block[part.key]) };
            }).filter(function (box) { return box.height > 0; }), part.fill, part.colour, wide > 5 ? 1 : 0);
        });
        run.blocks.forEach(function (block, index) {
            sensitive(chart, { x: x(index), width: wide, y: chart.top, height: chart.bottom - chart.top },
                      block.name + (block.last ? " … " + block.last : "") + ": " + parts.filter(function (part) {
                          return block[part.key] > 0;
                      }).map(function (part) { return bytesText(block[part.key]) + " " + part.name; }).join(", "));
        });
    }

    function drawTimeline(element, run) {
        var trace = run.trace;
        var rows = [];
        lanes.forEach(function (lane) {
            var slices = trace.slices.filter(function (slice) { return slice[0] === lane.name; });
            var used = d3.set(slices.map(function (slice) { return slice[1]; })).values().map(Number)
                .sort(d3.ascending);
            used.forEach(function (row, index) {
                rows.push({ lane: lane, label: index === 0 ? lane.name : "",
                            slices: slices.filter(function (slice) { return slice[1] === row; }) });
            });
        });
        var high = rows.length > 14 ? 12 : 22;
        var chart = picture(element, 44 + rows.length * (high + 5), { left: 94, right: 12, top: 6, bottom: 36 });
        var x = d3.scale.linear().domain([0, trace.ms || 1]).range([chart.left, chart.right]);
        var below = d3.svg.axis().scale(x).orient("bottom").outerTickSize(0)
            .ticks(Math.max(3, Math.floor((chart.right - chart.left) / 95))).tickFormat(timeTick);
        chart.svg.append("g").attr("class", "axis").attr("transform", "translate(0," + chart.bottom + ")").call(below);
        rows.forEach(function (row, index) {
            var y = chart.top + index * (high + 5);
            chart.svg.append("text").attr("class", "row").attr("x", chart.left - 8).attr("y", y + high / 2 + 4)
                .attr("text-anchor", "end").text(row.label);
            chart.svg.append("line").attr("class", "rule").attr("x1", chart.left).attr("x2", chart.right)
                .attr("y1", y + high + 2.5).attr("y2", y + high + 2.5);
            var boxes = row.slices.map(function (slice) {
                return { x: x(slice[2]), y: y, width: Math.max(x(slice[3]) - x(slice[2]), 0.8), height: high };
            });
            var thin = function (box) { return box.width < 2; };
            filled(chart, boxes.filter(thin), "solid", row.lane.colour, 0);
            filled(chart, boxes.filter(function (box) { return !thin(box); }), row.lane.fill, row.lane.colour, 1);
            row.slices.forEach(function (slice, place) {
                sensitive(chart, boxes[place],
                          slice[4] + ": " + timeText(slice[3] - slice[2]) + " from " + timeText(slice[2]) +
                          (slice[5] ? ", " + bytesText(slice[5]) : ""));
            });
        });
    }

    function drawMemory(element, run) {
        var traced = run.trace && run.trace.memory.length > 0;
        var points = traced ? run.trace.memory.slice()
            : run.steps.map(function (step) { return [step[0], step[3]]; });
        var chart = picture(element, 260, { left: 70, right: 14, top: 40, bottom: 40 });
        var held = { name: "held", colour: colour.blue };
        var levels = [];
        if (run.budget) {
            levels.push({ name: "budget", value: run.budget, colour: colour.vermilion, dash: "8 4" });
        }
        if (run.deviceBudget && run.deviceBudget !== run.budget) {
            levels.push({ name: "budget of the device", value: run.deviceBudget, colour: colour.black, dash: "2 3" });
        }
        chart.top = legend(chart, [held].concat(levels)) + 8;
        var first = points[0][0];
        var last = Math.max(points[points.length - 1][0],
                            traced ? run.trace.begin + run.trace.ms : first + 1);
        points.push([last, points[points.length - 1][1]]);
        var most = 1.06 * d3.max(points.map(function (point) { return point[1]; }).concat(
            levels.map(function (item) { return item.value; }))) || 1;
        var x = d3.scale.linear().domain([first, last]).range([chart.left, chart.right]);
        var y = d3.scale.linear().domain([0, most]).range([chart.bottom, chart.top]);
        if (traced) {
            chart.svg.append("rect").attr("class", "band").attr("x", x(run.trace.begin)).attr("y", chart.top)
                .attr("width", Math.max(x(run.trace.begin + run.trace.ms) - x(run.trace.begin), 1))
                .attr("height", chart.bottom - chart.top);
        }
        axes(chart, x, y, { xText: traced ? timeTick : d3.format("d"), yText: tickText, yValues: byteTicks(most, 5),
                            xName: traced ? "time" : "step" });
        path(chart, points, x, y, held.colour, "none", true);
        levels.forEach(function (item) { level(chart, y, item.value, item.colour, item.dash); });
    }

    function drawCurve(element, run) {
        var curve = run.curve;
        var chart = picture(element, 320, { left: 70, right: 18, top: 40, bottom: 42 });
        var entries = [{ name: "plan", colour: colour.blue, mark: "circle" },
                       { name: "bound", colour: colour.vermilion, dash: "8 4" }];
        if (curve.compute > 0) {
            entries.push({ name: "computation alone", colour: colour.green, dash: "2 3" });
        }
        entries.push({ name: "all of the model copied", colour: colour.grey, dash: "10 3 2 3" });
        entries.push({ name: "measured", colour: colour.black, mark: "diamond", lone: true });
        chart.top = legend(chart, entries) + 8;
        var first = curve.points[0].budget;
        var last = Math.max(curve.points[curve.points.length - 1].budget, curve.budget);
        var most = 1.06 * d3.max(curve.points.map(function (point) { return point.step; })
            .concat([curve.copyAll, curve.compute, run.median])) || 1;
        var x = d3.scale.linear().domain([0, last]).range([chart.left, chart.right]);
        var y = d3.scale.linear().domain([0, most]).range([chart.bottom, chart.top]);
        chart.svg.append("rect").attr("class", "none").attr("x", chart.left).attr("y", chart.top)
            .attr("width", x(first) - chart.left).attr("height", chart.bottom - chart.top);
        axes(chart, x, y, { xText: tickText, xValues: function (count) { return byteTicks(last, count + 3); },
                            yText: timeTick, xName: "budget" });
        if (x(first) - chart.left > 60) {
            chart.svg.append("text").attr("class", "hint").attr("x", (chart.left + x(first)) / 2)
                .attr("y", chart.bottom - 10).attr("text-anchor", "middle").text("no plan");
        }
        level(chart, y, curve.copyAll, colour.grey, "10 3 2 3");
        if (curve.compute > 0) {
            level(chart, y, curve.compute, colour.green, "2 3");
        }
        path(chart, curve.points.map(function (point) { return [point.budget, point.bound]; }), x, y,
             colour.vermilion, "8 4");
        path(chart, curve.points.map(function (point) { return [point.budget, point.step]; }), x, y, colour.blue);
        curve.points.forEach(function (point) {
            tip(mark(chart.svg, x(point.budget), y(point.step), "circle", colour.blue, 30),
                bytesText(point.budget) + ": " + timeText(point.step) + " a step, bound " + timeText(point.bound) +
                ", " + bytesText(point.copied) + " copied");
        });
        tip(mark(chart.svg, x(curve.budget), y(run.median), "diamond", colour.black, 90),
            "measured: " + timeText(run.median) + " with " + bytesText(curve.budget));
    }

    function drawSteps(element, run) {
        var chart = picture(element, 240, { left: 70, right: 14, top: 40, bottom: 40 });
        var entries = [{ name: "step", colour: colour.blue, mark: "circle" },
                       { name: "waits", colour: colour.vermilion, fill: "crosses" }];
        if (run.planned > 0) {
            entries.push({ name: "by the plan", colour: colour.green, dash: "2 3" });
        }
        chart.top = legend(chart, entries) + 8;
        var most = 1.06 * Math.max(d3.max(run.steps, function (step) { return Math.max(step[1], step[2]); }),
                                   run.planned || 0) || 1;
        var x = d3.scale.linear().domain(stepDomain([run])).range([chart.left, chart.right]);
        var y = d3.scale.linear().domain([0, most]).range([chart.bottom, chart.top]);
        stepAxes(chart, x, y);
        var area = d3.svg.area().x(function (step) { return x(step[0]); }).y0(y(0))
            .y1(function (step) { return y(step[2]); });
        chart.svg.append("path").attr("d", area(run.steps)).attr("stroke", colour.vermilion)
            .attr("fill", pattern(chart, "crosses", colour.vermilion));
        if (run.planned > 0) {
            level(chart, y, run.planned, colour.green, "2 3");
        }
        drawSeries(chart, run, x, y, colour.blue, "none", "circle");
    }

    function stepDomain(runs) {
        var numbers = d3.merge(runs.map(function (run) { return run.steps.map(function (step) { return step[0]; }); }));
        var domain = d3.extent(numbers);
        return domain[0] === domain[1] ? [domain[0] - 1, domain[1] + 1] : domain;
    }

    function stepAxes(chart, x, y) {
        axes(chart, x, y, { xText: d3.format("d"), yText: timeTick, xName: "step", xValues: function (count) {
            return x.ticks(count).filter(function (tick) { return tick % 1 === 0; });
        } });
    }

    function drawSeries(chart, run, x, y, paint, dash, type) {
        path(chart, run.steps, x, y, paint, dash);
        var each = Math.ceil(run.steps.length / 40);
        run.steps.forEach(function (step, index) {
            if (index % each === 0) {
                tip(mark(chart.svg, x(step[0]), y(step[1]), type, paint, 34),
                    run.label + ", step " + step[0] + ": " + timeText(step[1]) + ", of which the caller waited " +
                    timeText(step[2]));
            }
        });
    }

    // Runs may have any numbers of steps, so that each begins at 1 here.
    function drawComparison(element) {
        var chart = picture(element, 280, { left: 70, right: 14, top: 40, bottom: 40 });
        var runs = data.runs.map(function (run) {
            return { label: run.label, steps: run.steps.map(function (step) {
                return [step[0] - run.steps[0][0] + 1, step[1], step[2]];
            }) };
        });
        var style = function (index) {
            return { name: runs[index].label, colour: series[index % series.length],
                     dash: dashes[index % dashes.length], mark: marks[index % marks.length] };
        };
        chart.top = legend(chart, runs.map(function (run, index) { return style(index); })) + 8;
        var most = 1.06 * d3.max(d3.merge(runs.map(function (run) {
            return run.steps.map(function (step) { return step[1]; });
        }))) || 1;
        var x = d3.scale.linear().domain(stepDomain(runs)).range([chart.left, chart.right]);
        var y = d3.scale.linear().domain([0, most]).range([chart.bottom, chart.top]);
        stepAxes(chart, x, y);
        runs.forEach(function (run, index) {
            var look = style(index);
            drawSeries(chart, run, x, y, look.colour, look.dash, look.mark);
        });
    }

    function drawAll() {
        var draw = { plan: drawPlan, timeline: drawTimeline, memory: drawMemory, curve: drawCurve, steps: drawSteps };
        [].forEach.call(document.querySelectorAll(".chart"), function (element) {
            var parts = element.id.split("-");
            if (parts[0] === "compare") {
                drawComparison(element);
            } else {
                draw[parts[0]](element, data.runs[Number(parts[1])]);
            }
        });
    }

    var width = 0;
    function drawIfResized() {
        if (document.documentElement.clientWidth !== width) {
            width = document.documentElement.clientWidth;
            drawAll();
        }
    }
    drawIfResized();
    window.addEventListener("resize", drawIfResized);
}());
