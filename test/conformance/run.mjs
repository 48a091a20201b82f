// Runs sets of the conformance suite and judges them by its reports: its exit status ignores
// scenarios that made no check at all.
//
//   node run.mjs SUITE server NAME=URL[,NAME=URL] [SET ...]
//   node run.mjs SUITE client COMMAND [SET ...]
//
// SUITE is the suite's program. Each set of servers runs against each URL, and NAME labels its
// lines. A set of clients starts COMMAND for each scenario, with the URL of one of the suite's own
// servers. See scripts/conformance.sh.

import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

const LIMIT_MS = 300_000;
// The suite starts all clients at once, so each has to wait for the others.
const CLIENT_LIMIT_MS = 120_000;
const ROOT = join(import.meta.dirname, '..', '..');
// A warning counts as a failure: the file of expected failures has none.
const NONE_EXPECTED = ['--expected-failures', join(import.meta.dirname, 'expected-failures.yml')];
const LOOPBACK = `--require "${join(import.meta.dirname, 'loopback.cjs')}"`;
// The runs of the suite for each set.
const SETS = {
    server: {
        all: [['--suite', 'all']],
        '2025-11-25': [['--requirements', '2025-11-25']],
        '2026-07-28': [['--requirements', '2026-07-28']],
        // The suite has extensions only in the newest revision, unless each is requested by name.
        'skills-2025-11-25': ['enumeration', 'directory', 'manifest'].map((name) =>
            ['--scenario', `sep-2640-skills-${name}`, '--spec-version', '2025-11-25', '--force']),
    },
    client: {
        'client-all': [['--suite', 'all']],
        'client-2025-11-25': [['--requirements', '2025-11-25']],
        'client-2026-07-28': [['--requirements', '2026-07-28']],
    },
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

function argumentsFor(role, target) {
    return role === 'server'
        ? ['server', '--url', target]
        : ['client', '--command', target, '--timeout', String(CLIENT_LIMIT_MS)];
}

// The exit status, and the end of the output for a scenario without a report.
function play(suite, role, target, out, run) {
    const args = [suite, ...argumentsFor(role, target), '-o', out, ...run, ...NONE_EXPECTED];
    // The suite's own servers would listen on every address without the preloaded module.
    const env = role === 'server' ? process.env : { ...process.env, NODE_OPTIONS: LOOPBACK };
    const options = { cwd: ROOT, env, timeout: LIMIT_MS, killSignal: 'SIGKILL' };
    return new Promise((resolve) => {
        const child = spawn(process.execPath, args, options);
        let output = '';
        for (const stream of [child.stdout, child.stderr]) {
            stream.setEncoding('utf8').on('data', (text) => {
                output = (output + text).slice(-2000);
            });
        }
        child.on('error', (error) => resolve({ status: String(error), output }));
        child.on('close', (status, signal) => resolve({ status: signal ?? status, output }));
    });
}

function textOf(file) {
    return existsSync(file) ? readFileSync(file, 'utf8') : '';
}

// The reports by scenario: each has a folder SCENARIO-TIME, with `server-` in front for servers. A
// scenario's name may have a slash in it.
function reportsIn(out, role) {
    const all = existsSync(out) ? readdirSync(out, { recursive: true }) : [];
    const folders = all.filter((path) => path.endsWith('checks.json')).map((path) => dirname(path));
    const prefix = role === 'server' ? 'server-' : '';
    return new Map(folders.map((folder) => {
        const named = new RegExp(`^${prefix}(.*)-\\d{4}-\\d\\d-\\d\\dT[\\dZ-]+$`).exec(folder);
        const report = JSON.parse(readFileSync(join(out, folder, 'checks.json'), 'utf8'));
        return [named?.[1] ?? folder, role === 'server' ? { checks: report } : {
            checks: report,
            ended: textOf(join(out, folder, 'stdout.txt')).trimEnd().endsWith('done'),
            output: textOf(join(out, folder, 'stderr.txt')),
        }];
    }));
}

// A check of each request may succeed several times. The number of requests is the client's own
// choice, so a repeated success counts once.
function successes(role, checks) {
    const passed = checks.filter(({ status }) => status === 'SUCCESS');
    if (role === 'server') return passed.length;
    return new Set(passed.map(({ id, name }) => `${id} ${name}`)).size;
}

function oneLine(value) {
    return String(value ?? '').replace(/\s+/g, ' ').trim().slice(0, 1200);
}

function judge(role, label, expected, report) {
    if (report === undefined) {
        return { passed: 0, failed: 1, lines: [`not ok - ${label}: not run`] };
    }
    const { checks, ended, output } = report;
    const bad = checks.filter(({ status }) => status === 'FAILURE' || status === 'WARNING');
    const passed = successes(role, checks);
    const all = checks.map(({ id, status }) => `${id} ${status}`).join(', ') || 'no check';
    const lines = bad.map(({ id, status, description, errorMessage, details }) =>
        `not ok - ${label}: [${id}] ${status}: ${oneLine(description)}: ${oneLine(errorMessage)} ` +
            oneLine(JSON.stringify(details)));
    // A missing check is a failure too, whatever prevented it.
    if (bad.length === 0 && passed !== expected) {
        lines.push(`not ok - ${label}: ${passed} checks passed, expected ${expected}: ${all}`);
    }
    // The suite ignores a client that fails, hangs or crashes after its checks.
    if (ended === false) lines.push(`not ok - ${label}: the client failed: ${oneLine(output)}`);
    const failed = lines.length;
    if (failed === 0) lines.push(`ok - ${label}: ${passed} checks`);
    return { passed, failed, lines };
}

function verdicts(role, label, set, reports, { status, output }) {
    const expected = expectedIn(set);
    const made = [...expected].map(([name, checks]) => (
        { name, ...judge(role, `${label}: ${name}`, checks, reports.get(name)) }));
    // The requirements also have scenarios without a score; `all` includes them.
    const unknown = set === 'all' || set === 'client-all'
        ? [...reports.keys()].filter((name) => !expected.has(name))
        : [];
    const reported = made.some(({ failed }) => failed > 0) || unknown.length > 0;
    const lines = unknown.map((name) => `not ok - ${label}: ${name}: not in ${set}.txt`);
    if (status !== 0 && !reported) {
        lines.push(`not ok - ${label}: the suite ended with ${status}: ${oneLine(output)}`);
    }
    return [...made, { passed: 0, failed: lines.length, lines }];
}

// The targets, by the names for their lines, if there are names.
function targetsIn(role, targets) {
    if (role === 'client') return [['', targets]];
    return targets.split(',').map((target) => target.split(/=(.*)/s));
}

// The checks that passed, each once: those of a scenario on one wire, and in one of the sets with
// the same scenario and revision. The sets `all` and `client-all` have only scenarios in their own
// revision, which other sets may have too.
function countOnce(passed) {
    const ofAll = ({ set }) => set === 'all' || set === 'client-all';
    const dated = new Set(passed.filter((one) => !ofAll(one)).map(({ name }) => name));
    const most = new Map();
    for (const one of passed.filter((one) => !ofAll(one) || !dated.has(one.name))) {
        const key = `${one.set} ${one.name}`;
        most.set(key, Math.max(most.get(key) ?? 0, one.passed));
    }
    return [...most.values()].reduce((sum, checks) => sum + checks, 0);
}

async function main([suite, role, targets, ...wanted]) {
    const runs = SETS[role];
    const sets = wanted.length > 0 ? wanted : Object.keys(runs);
    const unknown = sets.filter((set) => !(set in runs));
    if (unknown.length > 0) {
        const known = Object.keys(runs).join(', ');
        console.error(`${unknown.join(', ')}: no such set of a ${role}; there are: ${known}`);
        return 2;
    }
    const kept = process.env.ERLMCP_CONFORMANCE_OUT;
    if (kept) mkdirSync(kept, { recursive: true });
    const root = mkdtempSync(join(kept || tmpdir(), 'conformance-'));
    const passed = [];
    let failed = 0;
    for (const [name, target] of targetsIn(role, targets)) {
        for (const set of sets) {
            const out = join(root, name.replace(/\W/g, '-'), set);
            let end = { status: 0, output: '' };
            for (const run of runs[set]) {
                const one = await play(suite, role, target, out, run);
                if (one.status !== 0) end = one;
            }
            const label = name === '' ? set : `${name} ${set}`;
            for (const verdict of verdicts(role, label, set, reportsIn(out, role), end)) {
                if (verdict.passed > 0) passed.push({ set, ...verdict });
                failed += verdict.failed;
                for (const line of verdict.lines) console.log(line);
            }
        }
    }
    if (kept) console.log(`# reports: ${root}`);
    else rmSync(root, { recursive: true, force: true });
    const made = passed.reduce((sum, one) => sum + one.passed, 0);
    console.log(`# ${made} checks passed on all wires and in all sets; each counts once`);
    console.log(`${countOnce(passed)} passed, ${failed} failed`);
    return failed === 0 && made > 0 ? 0 : 1;
}

process.exitCode = await main(process.argv.slice(2));
