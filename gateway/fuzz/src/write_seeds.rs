//! Writes the seeds: `seeds DIRECTORY` makes a directory for each target with a file for each seed.

use std::{env, error::Error, fs, path::Path};

use mdgw_gateway_fuzz::seeds;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = env::args().nth(1).ok_or("usage: seeds DIRECTORY")?;
    for (target, seeds) in seeds::all()? {
        let directory = Path::new(&directory).join(target);
        fs::create_dir_all(&directory)?;
        for (number, seed) in seeds.iter().enumerate() {
            fs::write(directory.join(format!("{number:03}")), seed)?;
        }
    }
    Ok(())
}
