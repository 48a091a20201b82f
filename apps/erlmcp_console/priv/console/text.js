// How figures are written. Pure.

const plain = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const tenth = new Intl.NumberFormat('en', {maximumFractionDigits: 1});

export function count(number) {
  return number >= 1e7 ? tenth.format(number / 1e6) + ' M' : plain.format(number);
}

// A rate: whole from ten on, since more is noise.
export function rate(number) {
  if (number === 0) return '0';
  if (number < 0.1) return '< 0.1';
  return number < 10 ? tenth.format(number) : count(number);
}

export function milliseconds(number) {
  if (number === 0) return '–';
  if (number < 1) return number.toFixed(2) + ' ms';
  if (number < 10) return number.toFixed(1) + ' ms';
  if (number < 1000) return plain.format(number) + ' ms';
  return number < 10_000 ? (number / 1000).toFixed(1) + ' s' : plain.format(number / 1000) + ' s';
}

// The two largest units of a time.
export function duration(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  const units = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  if (first < 0) return '0 s';
  let rest = seconds;
  return units.slice(first, first + 2).map(([unit, size]) => {
    const number = Math.floor(rest / size);
    rest -= number * size;
    return number > 0 ? `${number} ${unit}` : '';
  }).filter(Boolean).join(' ');
}

export function age(ms) {
  return ms < 10_000 ? (ms / 1000).toFixed(1) + ' s' : duration(ms);
}

export function bytes(number) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let value = number, unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit++; }
  return (value < 10 && unit > 0 ? value.toFixed(1) : plain.format(value)) + ' ' + units[unit];
}

export function percent(share) {
  const value = share * 100;
  return (value > 0 && value < 10 ? value.toFixed(1) : plain.format(value)) + ' %';
}

export function clock(ms, seconds = false) {
  return new Date(ms).toLocaleTimeString('en-GB',
    seconds ? {} : {hour: '2-digit', minute: '2-digit'});
}

// A name of the server's in words.
export function words(name) {
  return String(name).replaceAll('_', ' ');
}
