// What all pictures of a report consist of: drawn with D3 (version 3). Colours are Okabe and Ito's, which colour-blind
// people can tell apart. Each meaning also has a pattern, a dash or a mark of its own, so that a print in grey can be
// read.
var kit = (function () {
    "use strict";

    var colour = { black: "#000000", orange: "#E69F00", sky: "#56B4E9", green: "#009E73", yellow: "#F0E442",
                   blue: "#0072B2", vermilion: "#D55E00", purple: "#CC79A7", grey: "#767676" };
    var drawn = 0;

    function significant(value) {
        return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
    }

    function bytesText(bytes) {
        var units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        var unit = 0;
        while (bytes >= 1000 && unit < units.length - 1) {
            bytes /= 1024;
            unit += 1;
        }
        return (unit === 0 ? bytes.toFixed(0) : significant(bytes)) + " " + units[unit];
    }

    function timeText(ms) {
        return ms === 0 ? "0 ms"
            : ms < 1e-3 ? significant(ms * 1e6) + " ns"
            : ms < 1 ? significant(ms * 1e3) + " µs"
            : ms < 1e3 ? significant(ms) + " ms" : significant(ms / 1e3) + " s";
    }

    // At most about `count` round numbers of bytes: powers of two and multiples of them.
    function byteTicks(largest, count) {
        var step = Math.pow(2, Math.ceil(Math.log(Math.max(largest, 1) / count) / Math.LN2));
        return d3.range(0, largest * 1.0001, Math.max(step, 1));
    }

    // For axes, whose numbers are round.
    function tickText(bytes) { return bytesText(bytes).replace(/\.0+ /, " "); }
    function timeTick(ms) { return timeText(ms).replace(/\.0+ /, " "); }

    // An empty picture of the element's width.
    function picture(element, height, margin) {
        var width = Math.max(element.clientWidth, 280);
        element.innerHTML = "";
        var svg = d3.select(element).append("svg")
            .attr("viewBox", "0 0 " + width + " " + height)
            .attr("role", "img")
            .attr("aria-label", element.getAttribute("data-label"));
        drawn += 1;
        return { svg: svg, defs: svg.append("defs"), width: width, height: height, margin: margin, patterns: {},
                 number: drawn, left: margin.left, right: width - margin.right, top: margin.top,
                 bottom: height - margin.bottom };
    }

    function pattern(chart, kind, paint) {
        var id = "fill-" + chart.number + "-" + kind + paint.slice(1);
        if (kind === "solid") {
            return paint;
        }
        if (kind === "outline") {
            return "#ffffff";
        }
        if (!chart.patterns[id]) {
            chart.patterns[id] = true;
            var tile = chart.defs.append("pattern").attr("id", id).attr("width", 6).attr("height", 6)
                .attr("patternUnits", "userSpaceOnUse");
            tile.append("rect").attr("width", 6).attr("height", 6).attr("fill", "#ffffff");
            if (kind === "dots") {
                tile.append("circle").attr("cx", 3).attr("cy", 3).attr("r", 1.6).attr("fill", paint);
            } else {
                var paths = { stripes: "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2", bars: "M0,3 H6",
                              crosses: "M0,0 L6,6 M0,6 L6,0" };
                tile.append("path").attr("d", paths[kind]).attr("stroke", paint)
                    .attr("stroke-width", kind === "stripes" ? 2.4 : 1.6).attr("fill", "none");
            }
        }
        return "url(#" + id + ")";
    }

    // A legend in one or more rows at the top. Returns the room that it takes.
    function legend(chart, entries) {
        var x = chart.left;
        var y = 14;
        entries.forEach(function (entry) {
            var group = chart.svg.append("g").attr("class", "legend");
            var text = group.append("text").attr("x", 30).attr("y", 4).text(entry.name);
            var length = 30 + text.node().getComputedTextLength() + 18;
            if (x + length > chart.width && x > chart.left) {
                x = chart.left;
                y += 20;
            }
            group.attr("transform", "translate(" + x + "," + y + ")");
            if (entry.fill) {
                group.append("rect").attr("x", 0).attr("y", -7).attr("width", 24).attr("height", 13)
                    .attr("fill", pattern(chart, entry.fill, entry.colour)).attr("stroke", entry.colour);
            } else {
                group.append("line").attr("x1", 0).attr("x2", 24).attr("y1", 0).attr("y2", 0)
                    .attr("stroke", entry.colour).attr("stroke-width", 2).attr("stroke-dasharray", entry.dash || "none")
                    .style("display", entry.lone ? "none" : null);
                if (entry.mark) {
                    mark(group, 12, 0, entry.mark, entry.colour, 44);
                }
            }
            x += length;
        });
        return y + 12;
    }

    function mark(parent, x, y, type, paint, size) {
        return parent.append("path").attr("d", d3.svg.symbol().type(type).size(size || 40))
            .attr("transform", "translate(" + x + "," + y + ")").attr("fill", "#ffffff").attr("stroke", paint)
            .attr("stroke-width", 1.8);
    }

    function axes(chart, x, y, options) {
        var below = d3.svg.axis().scale(x).orient("bottom").outerTickSize(0);
        var count = Math.max(3, Math.floor((chart.right - chart.left) / 95));
        if (options.xValues) {
            below.tickValues(options.xValues(count));
        } else {
            below.ticks(count);
        }
        below.tickFormat(options.xText);
        var side = d3.svg.axis().scale(y).orient("left").outerTickSize(0).innerTickSize(chart.left - chart.right)
            .tickPadding(7)
            .tickFormat(options.yText);
        if (options.yValues) {
            side.tickValues(options.yValues);
        } else {
            side.ticks(5);
        }
        chart.svg.append("g").attr("class", "axis grid").attr("transform", "translate(" + chart.left + ",0)")
            .call(side);
        chart.svg.append("g").attr("class", "axis").attr("transform", "translate(0," + chart.bottom + ")").call(below);
        chart.svg.append("text").attr("class", "name").attr("x", chart.right).attr("y", chart.height - 4)
            .attr("text-anchor", "end").text(options.xName);
    }

    function path(chart, points, x, y, paint, dash, stepped) {
        var line = d3.svg.line().x(function (point) { return x(point[0]); })
            .y(function (point) { return y(point[1]); });
        if (stepped) {
            line.interpolate("step-after");
        }
        return chart.svg.append("path").attr("class", "line").attr("d", line(points)).attr("stroke", paint)
            .attr("stroke-dasharray", dash || "none");
    }

    function level(chart, y, value, paint, dash) {
        chart.svg.append("line").attr("class", "line").attr("x1", chart.left).attr("x2", chart.right)
            .attr("y1", y(value)).attr("y2", y(value)).attr("stroke", paint).attr("stroke-dasharray", dash);
    }

    // Rectangles of one fill are one path: browsers print each element with a pattern as a picture of its own.
    function filled(chart, boxes, kind, paint, width) {
        chart.svg.append("path").attr("d", boxes.map(function (box) {
            return "M" + box.x.toFixed(2) + "," + box.y.toFixed(2) + "h" + box.width.toFixed(2) + "v" +
                box.height.toFixed(2) + "h-" + box.width.toFixed(2) + "z";
        }).join("")).attr("fill", pattern(chart, kind, paint)).attr("stroke", paint).attr("stroke-width", width);
    }

    // Shows the text where the pointer rests.
    function sensitive(chart, box, text) {
        tip(chart.svg.append("rect").attr("class", "over").attr("x", box.x).attr("y", box.y).attr("width", box.width)
            .attr("height", box.height), text);
    }

    function tip(selection, text) { selection.append("title").text(text); }

    return { colour: colour, bytesText: bytesText, timeText: timeText, tickText: tickText, timeTick: timeTick,
             byteTicks: byteTicks, picture: picture, pattern: pattern, legend: legend, mark: mark, axes: axes,
             path: path, level: level, filled: filled, sensitive: sensitive, tip: tip };
}());
