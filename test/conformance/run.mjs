// Runs sets of the conformance suite and judges them by the reports that it writes: its exit status
// passes over scenarios that made no check at all.
//
//   node run.mjs SUITE NAME=URL[,NAME=URL] [SET ...]
//
// SUITE is the suite's program. Each set is run against each URL; NAME is what the lines say of it.
// See scripts/conformance.sh.

import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const LIMIT_MS = 300_000;
// A warning fails as a failure does: the file with the failures that are expected has none.
const NONE_EXPECTED = ['--expected-failures', join(import.meta.dirname, 'expected-failures.yml')];
// The runs of the suite that a set is.
const SETS = {
    all: [['--suite', 'all']],
    '2025-11-25': [['--requirements', '2025-11-25']],
    '2026-07-28': [['--requirements', '2026-07-28']],
    // The suite has extensions in the newest revision only, unless they are asked for one by one.
    'skills-2025-11-25': ['enumeration', 'directory', 'manifest'].map((name) =>
        ['--scenario', `sep-2640-skills-${name}`, '--spec-version', '2025-11-25', '--force']),
};

// One scenario a line: its name, and how many of its checks succeed. # begins a comment.
function expectedIn(set) {
    const lines = readFileSync(join(import.meta.dirname, `${set}.txt`), 'utf8')
        .split('\n')
        .map((line) => line.replace(/#.*/, '').trim())
        .filter((line) => line !== '');
    return new Map(lines.map((line) => {
        const [name, checks, ...rest] = line.split(/\s+/);
        if (!/^\d+$/.test(checks) || rest.length > 0) throw new Error(`${set}: ${line}`);
        return [name, Number(checks)];
    }));
}

// How it ended, and its last words for a scenario without a report.
function play(suite, url, out, run) {
    const args = [suite, 'server', '--url', url, '-o', out, ...run, ...NONE_EXPECTED];
    return new Promise((resolve) => {
        const child = spawn(process.execPath, args, { timeout: LIMIT_MS, killSignal: 'SIGKILL' });
        let said = '';
        for (const stream of [child.stdout, child.stderr]) {
            stream.setEncoding('utf8').on('data', (text) => {
                said = (said + text).slice(-2000);
            });
        }
        child.on('error', (error) => resolve({ status: String(error), said }));
        child.on('close', (status, signal) => resolve({ status: signal ?? status, said }));
    });
}

// The reports by scenario: a folder for each, named server-SCENARIO-TIME.
function reportsIn(out) {
    const all = existsSync(out) ? readdirSync(out) : [];
    const folders = all.filter((folder) => existsSync(join(out, folder, 'checks.json')));
    return new Map(folders.map((folder) => {
        const [, name] = /^server-(.*)-\d{4}-\d\d-\d\dT[\dZ-]+$/.exec(folder) ?? [, folder];
        return [name, JSON.parse(readFileSync(join(out, folder, 'checks.json'), 'utf8'))];
    }));
}

function oneLine(value) {
    return String(value ?? '').replace(/\s+/g, ' ').trim().slice(0, 1200);
}

function judge(label, expected, report) {
    if (report === undefined) {
        return { passed: 0, failed: 1, lines: [`not ok - ${label}: not run`] };
    }
    const bad = report.filter(({ status }) => status === 'FAILURE' || status === 'WARNING');
    const passed = report.filter(({ status }) => status === 'SUCCESS').length;
    const all = report.map(({ id, status }) => `${id} ${status}`).join(', ') || 'no check';
    const lines = bad.map(({ id, status, description, errorMessage, details }) =>
        `not ok - ${label}: [${id}] ${status}: ${oneLine(description)}: ${oneLine(errorMessage)} ` +
            oneLine(JSON.stringify(details)));
    // A check that was not made is a failure too, whatever kept it from being made.
    if (bad.length === 0 && passed !== expected) {
        lines.push(`not ok - ${label}: ${passed} checks passed, expected ${expected}: ${all}`);
    }
    const failed = lines.length;
    if (failed === 0) lines.push(`ok - ${label}: ${passed} checks`);
    return { passed, failed, lines };
}

function verdicts(label, set, reports, { status, said }) {
    const expected = expectedIn(set);
    const made = [...expected].map(([name, checks]) =>
        judge(`${label}: ${name}`, checks, reports.get(name)));
    // The requirements have scenarios beside them that are not scored; `all` has them too.
    const unknown = set === 'all' ? [...reports.keys()].filter((name) => !expected.has(name)) : [];
    const told = made.some(({ failed }) => failed > 0) || unknown.length > 0;
    const lines = unknown.map((name) => `not ok - ${label}: ${name}: not in all.txt`);
    if (status !== 0 && !told) {
        lines.push(`not ok - ${label}: the suite ended with ${status}: ${oneLine(said)}`);
    }
    return [...made, { passed: 0, failed: lines.length, lines }];
}

async function main([suite, targets, ...wanted]) {
    const sets = wanted.length > 0 ? wanted : Object.keys(SETS);
    const unknown = sets.filter((set) => !(set in SETS));
    if (unknown.length > 0) {
        const known = Object.keys(SETS).join(', ');
        console.error(`${unknown.join(', ')}: no such set; there are: ${known}`);
        return 2;
    }
    const kept = process.env.ERLMCP_CONFORMANCE_OUT;
    if (kept) mkdirSync(kept, { recursive: true });
    const root = mkdtempSync(join(kept || tmpdir(), 'conformance-'));
    let passed = 0;
    let failed = 0;
    for (const target of targets.split(',')) {
        const [name, url] = target.split(/=(.*)/s);
        for (const set of sets) {
            const out = join(root, name.replace(/\W/g, '-'), set);
            let end = { status: 0, said: '' };
            for (const run of SETS[set]) {
                const one = await play(suite, url, out, run);
                if (one.status !== 0) end = one;
            }
            for (const verdict of verdicts(`${name} ${set}`, set, reportsIn(out), end)) {
                passed += verdict.passed;
                failed += verdict.failed;
                for (const line of verdict.lines) console.log(line);
            }
        }
    }
    if (kept) console.log(`# reports: ${root}`);
    else rmSync(root, { recursive: true, force: true });
    console.log(`${passed} passed, ${failed} failed`);
    return failed === 0 && passed > 0 ? 0 : 1;
}

process.exitCode = await main(process.argv.slice(2));
