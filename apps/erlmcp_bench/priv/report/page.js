// Draws the figures of a report with uPlot. What a figure shows stands in the page as JSON.
(function () {
    'use strict';
    const figures = JSON.parse(document.getElementById('figures').textContent);
    const dark = window.matchMedia('(prefers-color-scheme: dark)');
    const drawn = [];

    function color(name) {
        return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    }

    function short(value) {
        return value.toLocaleString('en-US', {maximumSignificantDigits: 4});
    }

    const formats = {
        number: short,
        us: value => value < 1e3 ? short(value) + ' µs'
            : value < 1e6 ? short(value / 1e3) + ' ms' : short(value / 1e6) + ' s',
        // One of so many requests is slower.
        one_of: value => (100 - 100 / value).toFixed(Math.max(0, Math.ceil(Math.log10(value)) - 2))
            + ' %'
    };

    // On a logarithmic axis the powers of ten, and where there are few of them what is between.
    function ticks(format) {
        return (plot, splits) => {
            const decades = Math.log10(splits[splits.length - 1] / splits[0]);
            return splits.map(value => {
                const lead = value / Math.pow(10, Math.floor(Math.log10(value) + 1e-9));
                const near = n => Math.abs(lead - n) < 1e-6;
                return near(1) || decades < 2.5 && (near(2) || near(5)) ? format(value) : null;
            });
        };
    }

    function axis(of, side) {
        const format = formats[of.format];
        return {
            stroke: color('--ink'), grid: {stroke: color('--line'), width: 1},
            ticks: {stroke: color('--line'), width: 1}, font: '12px system-ui, sans-serif',
            label: of.label, labelFont: '12px system-ui, sans-serif', labelSize: 20,
            size: side === 'y' ? 64 : 36, space: side === 'y' ? 32 : 52,
            values: of.scale === 'log' ? ticks(format) : (plot, splits) => splits.map(format)
        };
    }

    // What is counted begins at nothing. Time can be zoomed, by dragging.
    function scale(of) {
        if (of.scale === 'log') return {time: false, distr: 3};
        if (of.scale === 'time') return {time: false};
        return {time: false, range: (plot, low, high) => [0, high > 0 ? high * 1.05 : 1]};
    }

    function size(box) {
        const width = Math.max(240, box.clientWidth);
        return {width, height: Math.round(Math.min(380, Math.max(240, width * 0.5)))};
    }

    function draw(figure) {
        const box = document.getElementById('plot-' + figure.id);
        const said = box.parentNode.querySelectorAll('.legend output');
        const options = Object.assign(size(box), {
            legend: {show: false},
            padding: [null, 28, null, null],
            cursor: {y: false, drag: {x: true, y: false}},
            scales: {x: scale(figure.x), y: scale(figure.y)},
            axes: [axis(figure.x, 'x'), axis(figure.y, 'y')],
            series: [{}].concat(figure.series.map((series, at) => ({
                stroke: color('--s' + (at % 8 + 1)), width: 2, spanGaps: true,
                dash: series.dashed ? [6, 5] : undefined,
                points: {show: series.points, size: 7, fill: color('--s' + (at % 8 + 1))}
            }))),
            hooks: {setCursor: [plot => {
                const at = plot.cursor.idx;
                said.forEach((output, i) => {
                    const value = at === null || at === undefined ? null : figure.data[i][at];
                    const format = formats[(i === 0 ? figure.x : figure.y).format];
                    output.textContent = value === null ? '' : format(value);
                });
            }]}
        });
        const plot = new uPlot(options, figure.data, box);
        return {figure, box, plot};
    }

    document.documentElement.classList.add('drawn');
    figures.forEach(figure => drawn.push(draw(figure)));
    dark.addEventListener('change', () => drawn.forEach((one, at) => {
        one.plot.destroy();
        drawn[at] = draw(one.figure);
    }));
    const resized = new ResizeObserver(() => drawn.forEach(one => {
        const now = size(one.box);
        if (now.width !== one.plot.width) one.plot.setSize(now);
    }));
    resized.observe(document.body);
}());
