// Runs sets of scenarios of the conformance suite and judges them by the reports it writes, since
// its exit status passes over warnings and over scenarios that made no check at all.
//
//   node run.mjs SUITE URL [SET ...]      SUITE is the suite's program; see scripts/conformance.sh

import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const LIMIT_MS = 60_000;
const sets = readdirSync(import.meta.dirname)
    .filter((file) => file.endsWith('.txt'))
    .map((file) => file.slice(0, -'.txt'.length));

// One scenario a line: wire, name, number of checks that succeed. # begins a comment.
function scenariosOf(set) {
    return readFileSync(join(import.meta.dirname, `${set}.txt`), 'utf8')
        .split('\n')
        .map((line) => line.replace(/#.*/, '').trim())
        .filter((line) => line !== '')
        .map((line) => {
            const [wire, name, checks, ...rest] = line.split(/\s+/);
            if (!/^\d+$/.test(checks) || rest.length > 0) throw new Error(`${set}.txt: ${line}`);
            return { wire, name, checks: Number(checks) };
        });
}

// The suite's own words, for a scenario without a report.
function play(suite, url, out, { wire, name }) {
    // The suite places no extension on its timeline, and skips what is not there. --force: our sets
    // say the wire of each scenario, and how many checks it makes there.
    const args = [
        suite, 'server', '--url', url, '--scenario', name, '--spec-version', wire, '--force',
        '-o', out,
    ];
    return new Promise((resolve) => {
        const child = spawn(process.execPath, args, { timeout: LIMIT_MS, killSignal: 'SIGKILL' });
        let said = '';
        for (const stream of [child.stdout, child.stderr]) {
            stream.setEncoding('utf8').on('data', (text) => {
                said = (said + text).slice(-2000);
            });
        }
        child.on('error', (error) => resolve(String(error)));
        child.on('close', (status, signal) => resolve(`ended with ${signal ?? status}: ${said}`));
    });
}

function reportIn(out) {
    const folders = existsSync(out) ? readdirSync(out) : [];
    const files = folders.map((folder) => join(out, folder, 'checks.json')).filter(existsSync);
    return files.length === 1 ? JSON.parse(readFileSync(files[0], 'utf8')) : undefined;
}

function oneLine(value) {
    return String(value ?? '').replace(/\s+/g, ' ').trim().slice(0, 1200);
}

function judge({ wire, name, checks: expected }, report, said) {
    const label = `${wire} ${name}`;
    if (report === undefined) {
        return { passed: 0, failed: 1, lines: [`not ok - ${label}: no report; ${oneLine(said)}`] };
    }
    const bad = report.filter(({ status }) => status === 'FAILURE' || status === 'WARNING');
    const passed = report.filter(({ status }) => status === 'SUCCESS').length;
    const lines = bad.map(({ id, status, description, errorMessage, details }) =>
        `not ok - ${label}: [${id}] ${status}: ${oneLine(description)}: ${oneLine(errorMessage)} ` +
            oneLine(JSON.stringify(details)));
    let failed = bad.length;
    // A check that was not made is a failure too, whatever kept it from being made.
    if (bad.length === 0 && passed !== expected) {
        failed += 1;
        const all = report.map(({ id, status }) => `${id} ${status}`).join(', ') || 'skipped';
        lines.push(`not ok - ${label}: ${passed} checks passed, expected ${expected}: ${all}`);
    }
    if (failed === 0) lines.push(`ok - ${label}: ${passed} checks`);
    return { passed, failed, lines };
}

async function main([suite, url, ...wanted]) {
    const chosen = wanted.includes('all') ? sets : wanted;
    const names = chosen.length > 0 ? chosen : ['tools-resources-prompts'];
    const unknown = names.filter((name) => !sets.includes(name));
    if (unknown.length > 0) {
        console.error(`${unknown.join(', ')}: no such set; there are: ${sets.join(', ')}, all`);
        return 2;
    }
    // What two sets share is played once.
    const scenarios = new Map();
    for (const scenario of names.flatMap(scenariosOf)) {
        scenarios.set(`${scenario.wire} ${scenario.name}`, scenario);
    }
    const kept = process.env.ERLMCP_CONFORMANCE_OUT;
    if (kept) mkdirSync(kept, { recursive: true });
    const root = mkdtempSync(join(kept || tmpdir(), 'conformance-'));
    let passed = 0;
    let failed = 0;
    // A scenario may change what the server lists while another one reads it: one at a time, but
    // the wires side by side, since a scenario is mostly the start of a Node.
    const wires = Map.groupBy(scenarios.values(), ({ wire }) => wire);
    await Promise.all([...wires.values()].map(async (ofWire) => {
        for (const scenario of ofWire) {
            const out = join(root, scenario.wire, scenario.name);
            const said = await play(suite, url, out, scenario);
            const verdict = judge(scenario, reportIn(out), said);
            passed += verdict.passed;
            failed += verdict.failed;
            for (const line of verdict.lines) console.log(line);
        }
    }));
    if (kept) console.log(`# reports: ${root}`);
    else rmSync(root, { recursive: true, force: true });
    console.log(`${passed} passed, ${failed} failed`);
    return failed === 0 && passed > 0 ? 0 : 1;
}

process.exitCode = await main(process.argv.slice(2));
