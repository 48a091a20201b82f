// Prints `CASE KIND VALIDATIONS_PER_SECOND` for Ajv; see ../schema.sh.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const [folder, cases, seconds] = process.argv.slice(2);
const require = createRequire(folder + '/');
const drafts = {
  '2020-12': require('ajv/dist/2020').default,
  '07': require('ajv').default,
};
const addFormats = require('ajv-formats').default;

let read = 0;
const flat = (text) => text.charCodeAt(text.length - 1);

function measure(validate, instances, expected) {
  const round = (times) => {
    for (let i = 0; i < times; i++) {
      for (const instance of instances) {
        if (validate(instance) !== expected) throw new Error('wrong answer');
      }
    }
  };
  let times = 1000;
  round(times);
  for (;;) {
    const start = process.cpuUsage();
    round(times);
    const { user, system } = process.cpuUsage(start);
    const took = (user + system) / 1e6;
    if (took >= seconds) return (times * instances.length) / took;
    times = Math.ceil(times * Math.max(1.2, (1.2 * seconds) / Math.max(took, 1e-4)));
  }
}

for (const { name, schema, valid, invalid } of JSON.parse(readFileSync(cases, 'utf8'))) {
  const Ajv = drafts[(schema.$schema ?? '').includes('draft-07') ? '07' : '2020-12'];
  const compile = (options) => {
    const ajv = new Ajv({ strict: false, ...options });
    addFormats(ajv);
    return ajv.compile(schema);
  };
  const first = compile({});
  const all = compile({ allErrors: true });
  // Reads every text, since the engine builds a text only when it is read.
  const told = (instance) => {
    const answer = all(instance);
    for (const error of all.errors) read += flat(`${error.instancePath} ${error.message}`);
    return answer;
  };
  const print = (kind, speed) => console.log(name, kind, Math.round(speed));
  print('valid', measure(first, valid, true));
  print('refused', measure(first, invalid, false));
  print('errors', measure(all, invalid, false));
  print('sentences', measure(told, invalid, false));
}
